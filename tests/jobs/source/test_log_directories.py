"""Logs are read from their files as a broker would return them, also damaged and torn ones."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType

from regent.core.model import TopicPartition
from regent.jobs.source.columns import OffsetRange
from regent.jobs.source.log_directories import LogReader
from regent.jobs.source.log_segments import segments_of
from regent.jobs.source.options import (
    DataLossError,
    OptionError,
    ReadOptions,
    Subscription,
)
from regent.jobs.source.worker_files import WorkerFiles
from regent.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    write_offsets,
    write_topic_id,
)
from tests.jobs.source.batches import GZIP, compressed, encoded
from tests.jobs.source.log_files import numbered, set_offsets, write_log, write_segment
from tests.support.transactional_batches import ABORT, COMMIT, in_transaction, marker

ORDERS, EMPTY = TopicPartition("orders", 0), TopicPartition("empty", 0)
OFFSET = StructType().add("offset", LongType())


def reader_of(
    *directories: Path,
    uncommitted: bool = False,
    strict: bool = True,
    subscription: Subscription = Subscription(pattern=".*"),  # noqa: B008
) -> LogReader:
    options = ReadOptions(
        subscription,
        tuple(map(str, directories)),
        include_uncommitted=uncommitted,
        fail_on_data_loss=strict,
    )
    return LogReader(options, OFFSET)


def ranges(reader: LogReader) -> dict[TopicPartition, tuple[int, int]]:
    """Return what is to be read, without empty partitions."""
    found = (part for part in reader.partitions() if isinstance(part, OffsetRange))
    return {part.partition: (part.start, part.end) for part in found}


def read(reader: LogReader, wanted: OffsetRange) -> list[int]:
    return [offset for batch in reader.read(wanted) for offset in batch[0].to_pylist()]


def offsets(directory: Path, start: int, end: int, *, strict: bool = True) -> list[int]:
    wanted = OffsetRange(ORDERS, start, end, str(directory / str(ORDERS)))
    return read(reader_of(directory, strict=strict), wanted)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 120), (0, 1), (7, 13), (49, 51), (50, 100), (119, 120)]
)
def test_a_range_is_read_across_batches_and_segments(tmp_path: Path, start: int, end: int):
    write_log(tmp_path, ORDERS, 120)
    assert offsets(tmp_path, start, end) == list(range(start, end))


def test_committed_records_lie_between_the_checkpoints(tmp_path: Path):
    write_log(tmp_path, ORDERS, 100)
    set_offsets(tmp_path, ORDERS, high_watermark=83, log_start=12)
    assert ranges(reader_of(tmp_path)) == {ORDERS: (12, 83)}
    assert ranges(reader_of(tmp_path, uncommitted=True)) == {ORDERS: (12, 100)}


def test_without_an_entry_in_the_checkpoint_no_record_counts_as_committed(tmp_path: Path):
    write_segment(tmp_path, ORDERS, [encoded(numbered(40, 50))], 40)
    write_offsets(tmp_path / HIGH_WATERMARKS, {})
    assert ranges(reader_of(tmp_path)) == {}
    assert ranges(reader_of(tmp_path, uncommitted=True)) == {ORDERS: (40, 50)}


@pytest.mark.parametrize("name", [HIGH_WATERMARKS, LOG_START_OFFSETS])
@pytest.mark.parametrize("damage", ["missing", "incomplete", "unreadable"])
def test_records_are_not_taken_for_absent_because_a_checkpoint_cannot_be_read(
    tmp_path: Path, name: str, damage: str
):
    sound, broken = tmp_path / "1", tmp_path / "2"
    for folder, count in ((sound, 20), (broken, 60)):
        write_log(folder, ORDERS, count)
        write_log(folder, EMPTY, 0)
    file = broken / name
    written = file.read_text()
    file.unlink()
    if damage == "incomplete":
        file.write_text(written[:-2])
    elif damage == "unreadable":
        file.mkdir()
    if (name, damage) == (LOG_START_OFFSETS, "missing"):  # brokers of Kafka may have none
        assert ranges(reader_of(sound, broken)) == {ORDERS: (0, 60)}
        return
    whole = Subscription(topics=(ORDERS.topic,))
    with pytest.raises(DataLossError) as raised:
        reader_of(sound, broken, subscription=whole).partitions()
    assert str(raised.value).startswith(f"{ORDERS}: {file}")
    assert ("includeUncommitted=true" in str(raised.value)) == (name == HIGH_WATERMARKS)
    assert ranges(reader_of(sound, broken, strict=False))[ORDERS][0] == 0
    assert ranges(reader_of(broken, subscription=Subscription(topics=(EMPTY.topic,)))) == {}
    if name == HIGH_WATERMARKS:
        assert ranges(reader_of(broken, uncommitted=True)) == {ORDERS: (0, 60)}


def test_without_any_watermark_the_longest_log_is_read_on_request(tmp_path: Path):
    for number, count in enumerate((20, 60, 40)):
        write_log(tmp_path / str(number), ORDERS, count)
        (tmp_path / str(number) / HIGH_WATERMARKS).unlink()
    reader = reader_of(*sorted(tmp_path.iterdir()), uncommitted=True)
    assert ranges(reader) == {ORDERS: (0, 60)}


def test_logs_of_two_topics_of_one_name_are_not_mixed(tmp_path: Path):
    folders = [tmp_path / str(number) for number in range(3)]
    for folder, number, topic_id in zip(folders, (0, 1, 1), "aba", strict=True):
        write_log(folder, TopicPartition("orders", number), 10)
        write_topic_id(folder / f"orders-{number}", topic_id * 22)
    assert len(ranges(reader_of(folders[0], folders[2]))) == 2
    with pytest.raises(OptionError) as raised:
        reader_of(*folders).partitions()
    (line,) = str(raised.value).splitlines()
    assert line.startswith("logDirs: ")
    assert str(folders[0]) in line
    assert str(folders[1]) in line


def test_the_replica_with_the_highest_watermark_is_read(tmp_path: Path):
    for number, count in enumerate((20, 60, 40)):
        write_log(tmp_path / str(number), ORDERS, count)
    reader = reader_of(*sorted(tmp_path.iterdir()))
    (wanted,) = reader.partitions()
    assert wanted == OffsetRange(ORDERS, 0, 60, str(tmp_path / "1" / "orders-0"))
    for number in (0, 2):  # a task needs only the log that the driver has chosen
        shutil.rmtree(tmp_path / str(number))
    assert read(reader, wanted) == list(range(60))


def test_files_are_opened_only_to_be_read(tmp_path: Path):
    write_log(tmp_path, ORDERS, 20)
    (segment,) = segments_of(str(tmp_path / str(ORDERS)), WorkerFiles())
    batches = segment.batches(0)
    next(batches)
    opened = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    (file,) = (int(path.name) for path in opened if str(path.resolve()) == segment.location)
    assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_log_ends_before_a_torn_batch(tmp_path: Path, cut: int):
    segment = write_segment(tmp_path, ORDERS, [encoded(numbered(0, 5)), encoded(numbered(5, 9))])
    segment.write_bytes(segment.read_bytes()[:-cut])
    assert ranges(reader_of(tmp_path, uncommitted=True)) == {ORDERS: (0, 5)}
    assert offsets(tmp_path, 0, 5) == [0, 1, 2, 3, 4]


def test_damage_before_the_end_is_an_error_or_skipped(tmp_path: Path):
    write_log(tmp_path, ORDERS, 100)
    segment = tmp_path / "orders-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(
        DataLossError, match=r"orders-0: offset 20 cannot be read: .*0\.log: at .*CRC"
    ):
        offsets(tmp_path, 0, 100)
    found = offsets(tmp_path, 0, 100, strict=False)
    assert found == [*range(20), *range(50, 100)]


def test_missing_records_are_an_error(tmp_path: Path):
    write_log(tmp_path, ORDERS, 30)
    with pytest.raises(DataLossError, match="offsets 30 to 39 do not exist"):
        offsets(tmp_path, 0, 40)
    assert offsets(tmp_path, 0, 40, strict=False) == list(range(30))


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
    assert offsets(tmp_path, 0, 15) == [2, 3, 4, 5, 7, 8, 13, 14]
    assert offsets(tmp_path, 0, 8) == [2, 3, 4, 5, 7]
    assert offsets(tmp_path, 9, 13) == [], "the last transaction of 1 is open"


def test_records_that_cannot_be_decompressed_are_an_error(tmp_path: Path):
    garbage = compressed(encoded(numbered(5, 9)), GZIP, lambda _: b"garbage")
    write_segment(tmp_path, ORDERS, [encoded(numbered(0, 5)), garbage])
    with pytest.raises(
        DataLossError, match=r"offset 0 cannot .*0\.log: records that cannot be decompressed"
    ):
        offsets(tmp_path, 0, 9)


def test_only_logs_in_use_are_found_and_missing_ones_are_named(tmp_path: Path):
    write_log(tmp_path, ORDERS, 1)
    write_log(tmp_path, TopicPartition("orders-by-day", 11), 1)
    (tmp_path / f"orders-1.{'0' * 32}-delete").mkdir()
    (tmp_path / "README").write_text("orders-2")

    def found(subscription: Subscription, directory: Path = tmp_path) -> list[TopicPartition]:
        return [*ranges(reader_of(directory, subscription=subscription, uncommitted=True))]

    both = [ORDERS, TopicPartition("orders-by-day", 11)]
    assert found(Subscription(pattern="orders.*")) == both
    assert found(Subscription(pattern="order")) == []
    with pytest.raises(OptionError, match="there is no topic nothing in "):
        found(Subscription(topics=("orders", "nothing")))
    with pytest.raises(OptionError, match="README is no directory"):
        found(Subscription(topics=("orders",)), tmp_path / "README")
