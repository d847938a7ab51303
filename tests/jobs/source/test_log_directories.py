"""Logs are read from their files as a broker would return them, also damaged and torn ones."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from regent.core.model import TopicPartition
from regent.jobs.source.columns import columns_schema
from regent.jobs.source.log_directories import LogDirectories
from regent.jobs.source.log_segments import segments_of
from regent.jobs.source.offsets import NO_OFFSET, OffsetRange
from regent.jobs.source.options import (
    EARLIEST,
    LATEST,
    DataLossError,
    OptionError,
    ReadOptions,
    Subscription,
)
from regent.storage.log.segment_indexes import OffsetIndex
from tests.jobs.source.batches import GZIP, compressed, encoded
from tests.jobs.source.log_files import numbered, set_offsets, write_log, write_segment
from tests.support.transactional_batches import ABORT, COMMIT, in_transaction, marker

ORDERS = TopicPartition("orders", 0)


def store_of(*directories: Path, uncommitted: bool = False, strict: bool = True) -> LogDirectories:
    options = ReadOptions(
        *({}, Subscription(), directories),
        include_uncommitted=uncommitted,
        fail_on_data_loss=strict,
    )
    return LogDirectories(options)


def offsets(store: LogDirectories, start: int, end: int) -> list[int]:
    wanted = store.located(OffsetRange(ORDERS, start, end))
    return [o for b in store.read(wanted, columns_schema("offset")) for o in b[0].to_pylist()]


@pytest.mark.parametrize(
    ("start", "end"), [(0, 120), (0, 1), (7, 13), (49, 51), (50, 100), (119, 120)]
)
def test_a_range_is_read_across_batches_and_segments(tmp_path: Path, start: int, end: int):
    write_log(tmp_path, ORDERS, 120)
    assert offsets(store_of(tmp_path), start, end) == list(range(start, end))


def test_the_index_is_used_and_a_damaged_one_is_not(tmp_path: Path):
    batches = [encoded(numbered(start, start + 10)) for start in range(0, 50, 10)]
    segment = write_segment(tmp_path, ORDERS, batches)
    index = OffsetIndex(0)
    index.append(29, len(batches[0]) + len(batches[1]))
    segment.with_suffix(".index").write_bytes(index.encode())
    segment.write_bytes(b"?" + segment.read_bytes()[1:])  # the first batch must not be read
    assert offsets(store_of(tmp_path), 30, 50) == list(range(30, 50))
    segment.write_bytes(b"\0" + segment.read_bytes()[1:])
    segment.with_suffix(".index").write_bytes(b"nonsense")
    assert offsets(store_of(tmp_path), 30, 50) == list(range(30, 50))


def test_committed_records_lie_between_the_checkpoints(tmp_path: Path):
    write_log(tmp_path, ORDERS, 100)
    set_offsets(tmp_path, ORDERS, high_watermark=83, log_start=12)
    store = store_of(tmp_path)
    assert store.list_offsets([ORDERS], EARLIEST) == {ORDERS: 12}
    assert store.list_offsets([ORDERS], LATEST) == {ORDERS: 83}
    assert store_of(tmp_path, uncommitted=True).list_offsets([ORDERS], LATEST) == {ORDERS: 100}


def test_without_checkpoints_no_record_counts_as_committed(tmp_path: Path):
    write_segment(tmp_path, ORDERS, [encoded(numbered(40, 50))], 40)
    assert store_of(tmp_path).list_offsets([ORDERS], EARLIEST) == {ORDERS: 40}
    assert store_of(tmp_path).list_offsets([ORDERS], LATEST) == {ORDERS: 40}
    assert store_of(tmp_path, uncommitted=True).list_offsets([ORDERS], LATEST) == {ORDERS: 50}


def test_the_replica_with_the_highest_watermark_is_read(tmp_path: Path):
    for number, count in enumerate((20, 60, 40)):
        write_log(tmp_path / str(number), ORDERS, count)
    directories = sorted(tmp_path.iterdir())
    assert store_of(*directories).list_offsets([ORDERS], LATEST) == {ORDERS: 60}
    assert offsets(store_of(*directories), 0, 60) == list(range(60))


def test_a_task_needs_only_the_log_that_the_driver_has_chosen(tmp_path: Path):
    for number, count in enumerate((20, 60)):
        write_log(tmp_path / str(number), ORDERS, count)
    directories = sorted(tmp_path.iterdir())
    wanted = store_of(*directories).located(OffsetRange(ORDERS, 0, 60))
    shutil.rmtree(directories[0])
    batches = store_of(*directories).read(wanted, columns_schema("offset"))
    assert [o for batch in batches for o in batch[0].to_pylist()] == list(range(60))


def test_files_are_opened_only_to_be_read(tmp_path: Path):
    write_log(tmp_path, ORDERS, 20)
    (segment,) = segments_of(tmp_path / str(ORDERS))
    batches = segment.batches(0)
    next(batches)
    opened = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    (file,) = (int(path.name) for path in opened if path.resolve() == segment.path.resolve())
    assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_log_ends_before_a_torn_batch(tmp_path: Path, cut: int):
    segment = write_segment(tmp_path, ORDERS, [encoded(numbered(0, 5)), encoded(numbered(5, 9))])
    segment.write_bytes(segment.read_bytes()[:-cut])
    assert store_of(tmp_path, uncommitted=True).list_offsets([ORDERS], LATEST) == {ORDERS: 5}
    assert offsets(store_of(tmp_path), 0, 5) == [0, 1, 2, 3, 4]


def test_damage_before_the_end_is_an_error_or_skipped(tmp_path: Path):
    write_log(tmp_path, ORDERS, 100)
    segment = tmp_path / "orders-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(
        DataLossError, match=r"orders-0: offset 20 cannot be read: .*0\.log: at .*CRC"
    ):
        offsets(store_of(tmp_path), 0, 100)
    found = offsets(store_of(tmp_path, strict=False), 0, 100)
    assert found == [*range(20), *range(50, 100)]


def test_missing_records_are_an_error(tmp_path: Path):
    write_log(tmp_path, ORDERS, 30)
    with pytest.raises(DataLossError, match="offsets 30 to 39 do not exist"):
        offsets(store_of(tmp_path), 0, 40)
    assert offsets(store_of(tmp_path, strict=False), 0, 40) == list(range(30))


def test_only_records_of_committed_transactions_are_read(tmp_path: Path):
    def written(offset: int, producer_id: int) -> bytes:
        values = (b"x", b"y")
        return in_transaction(*values, producer_id=producer_id, sequence=0, base_offset=offset)

    first = [
        *(written(0, 1), written(2, 2), encoded(numbered(4, 6))),
        *(marker(ABORT, producer_id=1, base_offset=6), written(7, 1)),
    ]
    second = [
        *(
            marker(COMMIT, producer_id=1, base_offset=9),
            marker(COMMIT, producer_id=2, base_offset=10),
        ),
        *(written(11, 1), written(13, 3), marker(COMMIT, producer_id=3, base_offset=15)),
    ]
    write_segment(tmp_path, ORDERS, first)
    write_segment(tmp_path, ORDERS, second, 9)
    set_offsets(tmp_path, ORDERS, high_watermark=15)
    assert offsets(store_of(tmp_path), 0, 15) == [2, 3, 4, 5, 7, 8, 13, 14]
    assert offsets(store_of(tmp_path), 0, 8) == [2, 3, 4, 5, 7]
    assert offsets(store_of(tmp_path), 9, 13) == [], "the last transaction of 1 is open"


def test_records_that_cannot_be_decompressed_are_an_error(tmp_path: Path):
    garbage = compressed(encoded(numbered(5, 9)), GZIP, lambda _: b"garbage")
    write_segment(tmp_path, ORDERS, [encoded(numbered(0, 5)), garbage])
    with pytest.raises(
        DataLossError, match=r"offset 0 cannot .*0\.log: records that cannot be decompressed"
    ):
        offsets(store_of(tmp_path), 0, 9)


def test_the_first_record_since_a_time_is_found(tmp_path: Path):
    write_log(tmp_path, ORDERS, 100)
    store = store_of(tmp_path)
    found = [store.list_offsets([ORDERS], t)[ORDERS] for t in (0, 37, 99, 100)]
    assert found == [0, 37, 99, NO_OFFSET]


def test_only_logs_in_use_are_found_and_missing_ones_are_named(tmp_path: Path):
    write_log(tmp_path, ORDERS, 1)
    write_log(tmp_path, TopicPartition("orders-by-day", 11), 1)
    (tmp_path / f"orders-1.{'0' * 32}-delete").mkdir()
    (tmp_path / "README").write_text("orders-2")
    store = store_of(tmp_path)
    assert store.partitions(Subscription(pattern="orders.*")) == [
        ORDERS,
        TopicPartition("orders-by-day", 11),
    ]
    assert store.partitions(Subscription(pattern="order")) == []
    with pytest.raises(OptionError, match="there is no topic nothing in "):
        store.partitions(Subscription(topics=("orders", "nothing")))
    with pytest.raises(OptionError, match="there is no partition orders-1 in "):
        store.partitions(Subscription(assigned=(ORDERS, TopicPartition("orders", 1))))
    with pytest.raises(OptionError, match="README is no directory"):
        store_of(tmp_path / "README").partitions(Subscription(topics=("orders",)))
