from __future__ import annotations

from collections.abc import Sequence

import pytest

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.replica_logs import ActiveProducer, AppendOrigin, PartitionLog
from tests.storage.contract.hosts import T1, Host, create, log_of
from tests.storage.contract.records import EVERYTHING, append, values
from tests.support.record_batches import TIMESTAMP_MS, resealed
from tests.support.transactional_batches import ABORT, COMMIT, emptied, in_transaction, marker

ONE, TWO = 4_001, 4_002


class Producers:
    """Writes transactions to a log."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}

    def send(self, producer_id: int, *values: bytes) -> int:
        """Append a batch of a transaction; return its first offset."""
        sequence = self.sequences.get(producer_id, 0)
        values = values or (b"x",)
        self.sequences[producer_id] = sequence + len(values)
        data = in_transaction(*values, producer_id=producer_id, sequence=sequence)
        return self.log.append_as_leader(data, 1).first_offset

    def end(self, producer_id: int, kind: int, *, coordinator_epoch: int = 0) -> int:
        """Append a marker; return its offset."""
        data = marker(kind, producer_id=producer_id, coordinator_epoch=coordinator_epoch)
        return self.log.append_as_leader(data, 1, AppendOrigin.COORDINATOR).first_offset


@pytest.fixture
def producers(log: PartitionLog) -> Producers:
    return Producers(log)


def refused(log: PartitionLog, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> Errors:
    end = log.log_end_offset
    with pytest.raises(RecordsRefusedError) as refusal:
        log.append_as_leader(data, 1, origin)
    assert log.log_end_offset == end
    return refusal.value.error_code


def aborted(log: PartitionLog, offset: int, limit: int | None = None) -> Sequence[tuple[int, int]]:
    """Return the aborted transactions that a reader from ``offset`` on is told."""
    limit = log.log_end_offset if limit is None else limit
    records = log.read(offset, EVERYTHING, limit, at_least_one=True)
    told = log.aborted_transactions(offset, records)
    return [(each.producer_id, each.first_offset) for each in told]


# --- the first unstable offset --------------------------------------------------------------------


def test_without_transactions_all_is_stable(log: PartitionLog):
    append(log, b"a")
    assert log.first_unstable_offset(0) is None


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_transaction_is_unstable_until_its_marker_is_committed(
    log: PartitionLog, producers: Producers, kind: int
):
    append(log, b"a")
    producers.send(ONE)
    producers.send(ONE)
    assert log.first_unstable_offset(3) == 1
    assert producers.end(ONE, kind) == 3
    assert [log.first_unstable_offset(offset) for offset in (3, 4)] == [1, None]


def test_the_first_of_several_transactions_counts(log: PartitionLog, producers: Producers):
    producers.send(ONE)
    producers.send(TWO)
    producers.end(ONE, COMMIT)
    assert log.first_unstable_offset(2) == 0
    assert log.first_unstable_offset(3) == 1
    producers.send(ONE)
    producers.end(TWO, ABORT)
    assert log.first_unstable_offset(5) == 3


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_a_transaction_stays_open_when_a_process_ends(
    host: Host, log: PartitionLog, producers: Producers, end: str
):
    for _ in range(20):
        append(log, b"a", epoch=1)
    producers.send(ONE)
    for _ in range(20):
        append(log, b"a", epoch=1)
    getattr(host, end)()
    log = log_of(host)
    assert log.first_unstable_offset(41) == 20
    Producers(log).end(ONE, COMMIT)
    assert log.first_unstable_offset(42) is None


def test_a_truncation_opens_a_transaction_again(log: PartitionLog, producers: Producers):
    producers.send(ONE)
    producers.end(ONE, COMMIT)
    producers.send(TWO)
    log.truncate_to(1)
    assert log.first_unstable_offset(1) == 0
    assert producers.end(ONE, ABORT) == 1
    assert log.first_unstable_offset(2) is None


def test_tools_see_the_open_transactions_and_the_coordinators(
    log: PartitionLog, producers: Producers
):
    producers.send(ONE)
    producers.send(TWO, b"a", b"b")
    producers.end(ONE, COMMIT, coordinator_epoch=7)
    fencing = marker(ABORT, producer_id=3, producer_epoch=2, coordinator_epoch=8)
    log.append_as_leader(fencing, 1, AppendOrigin.COORDINATOR)
    assert set(log.active_producers()) == {
        ActiveProducer(ONE, 0, 0, TIMESTAMP_MS, 7, -1),
        ActiveProducer(TWO, 0, 1, TIMESTAMP_MS, -1, 1),
        ActiveProducer(3, 2, -1, TIMESTAMP_MS, 8, -1),
    }


def test_only_an_open_transaction_can_be_late(log: PartitionLog, producers: Producers):
    ever, never = -300_001, 10**15  # maximum timeouts
    producers.send(ONE)
    assert log.producer_summary(ever) == (1, True)
    assert log.producer_summary(never) == (1, False)
    producers.end(ONE, COMMIT)
    assert log.producer_summary(ever) == (1, False)


# --- what is refused ------------------------------------------------------------------------------


def test_only_coordinators_write_markers(log: PartitionLog, producers: Producers):
    producers.send(ONE)
    assert refused(log, marker(COMMIT, producer_id=ONE)) is Errors.INVALID_RECORD
    assert log.first_unstable_offset(1) == 0


def test_a_marker_of_a_former_coordinator_is_refused(log: PartitionLog, producers: Producers):
    producers.send(ONE)
    producers.end(ONE, COMMIT, coordinator_epoch=5)
    producers.send(ONE)
    old = marker(ABORT, producer_id=ONE, coordinator_epoch=4)
    fenced = Errors.TRANSACTION_COORDINATOR_FENCED
    assert refused(log, old, AppendOrigin.COORDINATOR) is fenced
    assert log.first_unstable_offset(3) == 2
    producers.end(ONE, COMMIT, coordinator_epoch=5)
    assert log.first_unstable_offset(4) is None


def test_a_marker_with_a_newer_epoch_fences_the_producer(log: PartitionLog, producers: Producers):
    producers.send(ONE)
    newer = marker(ABORT, producer_id=ONE, producer_epoch=1)
    log.append_as_leader(newer, 1, AppendOrigin.COORDINATOR)
    zombie = in_transaction(b"z", producer_id=ONE, sequence=1)
    assert refused(log, zombie) is Errors.INVALID_PRODUCER_EPOCH
    old = marker(COMMIT, producer_id=ONE)
    assert refused(log, old, AppendOrigin.COORDINATOR) is Errors.INVALID_PRODUCER_EPOCH
    first = in_transaction(b"a", producer_id=ONE, producer_epoch=1, sequence=0)
    assert log.append_as_leader(first, 1).first_offset == 2


def test_a_batch_outside_of_the_open_transaction_is_refused(
    log: PartitionLog, producers: Producers
):
    producers.send(ONE)
    plain = resealed_as_plain(in_transaction(b"b", producer_id=ONE, sequence=1))
    assert refused(log, plain) is Errors.INVALID_TXN_STATE
    producers.end(ONE, COMMIT)
    log.append_as_leader(plain, 1)


def resealed_as_plain(data: bytes) -> bytes:
    """Return a batch that is not part of a transaction."""
    changed = bytearray(data)
    changed[22] = 0  # attributes
    return resealed(changed)


def test_a_marker_that_is_not_well_formed_is_refused(log: PartitionLog):
    whole = marker(COMMIT, producer_id=ONE)
    damaged = bytearray(whole)
    damaged[66] = 0xFF  # the version in the key is negative
    origin = AppendOrigin.COORDINATOR
    assert refused(log, resealed(damaged), origin) is Errors.CORRUPT_MESSAGE
    with pytest.raises(RecordsRefusedError):
        log.append_as_follower(resealed(damaged))


def test_a_coordinator_writes_batches_with_the_same_sequence(log: PartitionLog):
    data = in_transaction(b"offsets", producer_id=ONE, sequence=0)
    for offset in range(3):
        appended = log.append_as_leader(data, 1, AppendOrigin.COORDINATOR)
        assert (appended.first_offset, appended.is_duplicate) == (offset, False)
    assert log.first_unstable_offset(3) == 0


def test_an_append_needs_the_guard_of_its_verification(log: PartitionLog, producers: Producers):
    data = in_transaction(b"a", producer_id=ONE, sequence=0)
    guard = log.begin_verification(data)
    with pytest.raises(RecordsRefusedError) as refusal:
        log.append_as_leader(data, 1, guard=guard + 1)
    assert refusal.value.error_code is Errors.INVALID_TXN_STATE
    producers.end(ONE, ABORT)
    with pytest.raises(RecordsRefusedError):  # a late batch, after the end of its transaction
        log.append_as_leader(data, 1, guard=guard)
    assert log.begin_verification(data) != guard
    log.append_as_leader(data, 1, guard=log.begin_verification(data))
    assert log.begin_verification(data) == 0
    more = in_transaction(b"b", producer_id=ONE, sequence=1)
    log.append_as_leader(more, 1, guard=0)
    producers.end(ONE, COMMIT)
    late = in_transaction(b"c", producer_id=ONE, sequence=2)
    with pytest.raises(RecordsRefusedError):  # it was open when the request came
        log.append_as_leader(late, 1, guard=0)


# --- aborted transactions -------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [[], ["restart"], ["crash"], ["crash", "restart"]])
def test_readers_get_the_aborted_transactions(
    host: Host, log: PartitionLog, producers: Producers, ends: list[str]
):
    producers.send(ONE)  # 0
    producers.send(TWO)  # 1
    producers.end(ONE, ABORT)  # 2
    for _ in range(20):
        producers.send(ONE)
    producers.end(ONE, COMMIT)  # 23
    producers.end(TWO, ABORT)  # 24
    append(log, b"a")
    for end in ends:
        getattr(host, end)()
    log = log_of(host)
    assert aborted(log, 0, 1)[0] == (ONE, 0)
    assert (TWO, 1) in aborted(log, 0, 3)
    assert aborted(log, 10) == [(TWO, 1)]
    assert aborted(log, 24) == [(TWO, 1)]
    assert aborted(log, 25) == []


def test_a_marker_that_is_repeated_or_emptied_changes_nothing(
    host: Host, log: PartitionLog, producers: Producers
):
    producers.send(ONE)
    producers.end(ONE, ABORT)
    producers.end(ONE, ABORT)
    assert aborted(log, 0) == [(ONE, 0)]
    producers.send(ONE)
    whole = marker(ABORT, producer_id=ONE, base_offset=4, leader_epoch=1)
    empty = resealed(emptied(whole))
    log.append_as_follower(empty)
    assert log.first_unstable_offset(5) == 3
    host.crash()
    assert log_of(host).first_unstable_offset(5) == 3


def test_a_truncated_marker_is_forgotten(host: Host, log: PartitionLog, producers: Producers):
    for _ in range(5):
        producers.send(ONE)
        producers.end(ONE, ABORT)
    log.truncate_to(5)  # one that began at 4 is open again
    assert log.first_unstable_offset(5) == 4
    producers.end(ONE, COMMIT)
    expected = [(ONE, 0), (ONE, 2)]
    assert aborted(log, 0) == expected
    host.crash()
    assert aborted(log_of(host), 0) == expected


def test_a_follower_has_the_transactions_of_its_leader(
    host: Host, log: PartitionLog, producers: Producers
):
    producers.send(ONE)
    producers.send(TWO)
    producers.end(ONE, ABORT)
    append(log, b"a")
    follower = create(host, T1)
    while follower.log_end_offset < 4:
        records = log.read(follower.log_end_offset, EVERYTHING, 4, at_least_one=True)
        follower.append_as_follower(records.read())
    assert values(follower) == values(log)
    assert follower.first_unstable_offset(4) == 1
    assert aborted(follower, 0) == [(ONE, 0)]
    zombie = marker(COMMIT, producer_id=TWO, coordinator_epoch=-1)
    assert Producers(follower).end(TWO, COMMIT) == 4
    assert refused(follower, zombie, AppendOrigin.COORDINATOR) is (
        Errors.TRANSACTION_COORDINATOR_FENCED
    )


def test_after_a_full_truncation_there_are_no_transactions(log: PartitionLog, producers: Producers):
    producers.send(ONE)
    producers.send(TWO)
    producers.end(TWO, ABORT)
    log.truncate_fully_and_start_at(50)
    assert log.first_unstable_offset(50) is None
    append(log, b"a")
    assert aborted(log, 50) == []
