"""The index of aborted transactions: what it finds, and when its file is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.core.errors import BadDataError
from regent.core.log_config import LogConfig
from regent.core.replica_logs import AppendOrigin
from regent.storage.log.transaction_index import AbortedTransaction, TransactionIndex
from regent.storage.log.unified_log import UnifiedLog
from tests.support.disk_logs import Machine, create, fill, log_of
from tests.support.transactional_batches import ABORT, in_transaction, marker

ONE, TWO = 4_001, 4_002
EVERYTHING = 2**31 - 1


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "log", defaults=LogConfig(segment_bytes=400))
    machine.start()
    yield machine
    machine.end()


def abort(log: UnifiedLog, producer_id: int) -> None:
    """Append an aborted transaction."""
    known = log.last_of_producer(producer_id)
    sequence = 0 if known is None else known.sequence + 1
    log.append_as_leader(in_transaction(b"x", producer_id=producer_id, sequence=sequence), 0)
    data = marker(ABORT, producer_id=producer_id)
    log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)


def aborted(log: UnifiedLog, offset: int = 0) -> list[tuple[int, int]]:
    """Return the aborted transactions from an offset on."""
    records = log.read(offset, 1, log.log_end_offset, at_least_one=True)
    told = log.aborted_transactions(offset, records)
    return [(each.producer_id, each.first_offset) for each in told]


def test_the_search_ends_where_no_later_transaction_can_begin_before_the_end() -> None:
    entries = [AbortedTransaction(1, 0, 5, 4), AbortedTransaction(2, 4, 6, 7)]
    index = TransactionIndex(entries)
    assert index.collect(0, 4) == (entries[:1], True)
    assert index.collect(0, 5) == (entries, True)
    assert index.collect(6, 8) == (entries[1:], False)
    assert index.collect(5, 5) == (entries, True)


@pytest.mark.parametrize("data", [b"x", b"\1" * 34, AbortedTransaction(1, 2, 3, 4).encode() * 2])
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(data)
    with pytest.raises(BadDataError):
        TransactionIndex.load(path, 0)


def test_an_index_without_entries_has_no_file(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index = TransactionIndex()
    index.write(path)
    assert not path.exists()
    index.append(AbortedTransaction(1, 0, 5, 6))
    index.write(path)
    assert path.stat().st_size == 34
    assert TransactionIndex.load(path, 0).entries == index.entries
    index.truncate_to(5)
    index.write(path)
    assert not path.exists()


def test_a_segment_that_is_closed_has_its_index_in_a_file(machine: Machine) -> None:
    log = create(machine.logs)
    abort(log, ONE)
    fill(log, 3)
    assert not list(log.path.glob("*.txnindex"))
    fill(log, 3)
    (path,) = log.path.glob("*.txnindex")
    assert path.name == f"{0:020d}.txnindex"
    assert path.read_bytes() == AbortedTransaction(ONE, 0, 1, 2).encode()


def test_an_index_that_recovery_built_survives_the_next_crash(machine: Machine) -> None:
    log = create(machine.logs)
    abort(log, ONE)
    fill(log, 20)
    log = log_of(machine.crash())
    log.flush()
    machine.logs.checkpoint_recovery_points()  # the next recovery begins after the marker
    log = log_of(machine.crash())
    assert aborted(log) == [(ONE, 0)]


def test_a_damaged_index_is_built_again_when_it_is_read(machine: Machine) -> None:
    log = create(machine.logs)
    log.append_as_leader(in_transaction(b"x", producer_id=TWO, sequence=0), 0)
    for _ in range(6):
        abort(log, ONE)
    log.append_as_leader(marker(ABORT, producer_id=TWO), 0, AppendOrigin.COORDINATOR)
    fill(log, 20)
    expected = aborted(log)
    log = log_of(machine.restart())
    for path in log.path.glob("*.txnindex"):
        path.write_bytes(b"damaged")
    assert aborted(log) == expected
    assert (TWO, 0) in expected


def test_the_index_goes_with_its_segment(machine: Machine) -> None:
    log = create(machine.logs)
    abort(log, ONE)
    fill(log, 20)
    log.truncate_fully_and_start_at(30)
    assert not list(log.path.glob("*.txnindex"))
    log.delete_dropped_files(machine.clock.now_ms + 10**9)
    assert not list(log.path.glob("*.txnindex*"))
