"""Log directories that genuine brokers of Kafka wrote, and closed in the controlled way.

Each archive has the directory ``data`` and, in ``records.json``, what a consumer of Kafka saw in
it: for each isolation level and partition the offset, the timestamp, the key and the value of every
record. There is a compacted topic, one of which records were deleted, with committed, aborted and
open transactions, and one for each compression.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from regent.core.model import TopicPartition
from regent.records.record_batch import batches, records_of
from regent.storage.checkpoints import read_offsets, read_topic_id
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from regent.storage.log_names import log_of_directory

KAFKA = 9
PLAIN = TopicPartition("plain", 0)
CHECKPOINTS = (
    *("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"),
    "cleaner-offset-checkpoint",
)
OF_A_LOG = ("*.log", "*.index", "*.timeindex", "*.txnindex", "leader-epoch-checkpoint")

Row = tuple[int, int, str | None, str]


@pytest.fixture(params=["3.9.1", "2.8.2"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder with a directory and its records."""
    with ZipFile(Path(__file__).parent / f"kafka-{request.param}.zip") as packed:
        packed.extractall(tmp_path)
    return tmp_path


def opened(written: Path) -> LogManager:
    logs = LogManager([written / "data"], KAFKA)
    logs.open()
    return logs


def rows(log: UnifiedLog) -> Iterator[Row]:
    """Yield the records of a log, without the markers of transactions."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset, at_least_one=True).read()
        view = memoryview(data)
        for position, header in batches(view):
            offset = header.next_offset
            if header.is_control:
                continue
            for record in records_of(header, view[position : position + header.size]):
                if record.offset >= log.log_start_offset:
                    key = None if record.key is None else record.key.decode()
                    value = b"" if record.value is None else record.value
                    yield record.offset, record.timestamp, key, value.decode()


def seen_by_kafka(written: Path, level: str) -> dict[str, list[Row]]:
    seen = json.loads((written / "records.json").read_text())[level]
    return {name: [tuple(row) for row in found] for name, found in seen.items()}


def log_of(logs: LogManager, name: TopicPartition) -> UnifiedLog:
    log = logs.get(name)
    assert log is not None
    return log


def check_records(logs: LogManager, written: Path) -> None:
    for name, expected in seen_by_kafka(written, "read_uncommitted").items():
        topic, _, number = name.rpartition("-")
        assert list(rows(log_of(logs, TopicPartition(topic, int(number))))) == expected, name


def files(written: Path, *patterns: str) -> dict[str, bytes]:
    data = written / "data"
    return {
        str(path.relative_to(data)): path.read_bytes()
        for pattern in patterns
        for path in data.glob(f"*-*/{pattern}")
    }


def offsets(written: Path, checkpoint: str) -> dict[TopicPartition, int]:
    """Return what a checkpoint has; Kafka leaves out some that are 0."""
    found = read_offsets(written / "data" / checkpoint)
    return {name: offset for name, offset in found.items() if offset}


def test_every_record_is_read(written: Path):
    logs = opened(written)
    check_records(logs, written)
    directories = {log_of_directory(path.name): path for path in (written / "data").glob("*-*/")}
    assert len(logs.hosted()) == sum(name is not None for name in directories)
    for name, topic_id in logs.hosted().items():
        assert topic_id == read_topic_id(directories[name])
        assert logs.checkpointed_high_watermark(name) == log_of(logs, name).log_end_offset
    logs.close(is_clean=True)


def test_every_record_is_read_also_after_a_crash(written: Path):
    (written / "data/.kafka_cleanshutdown").unlink()
    for index in (written / "data").glob("*-*/*.*index"):
        index.unlink()
    logs = opened(written)
    check_records(logs, written)
    logs.close(is_clean=True)


def test_transactions_and_deleted_records_are_known(written: Path):
    logs = opened(written)
    log, seen = log_of(logs, PLAIN), seen_by_kafka(written, "read_committed")["plain-0"]
    assert log.log_start_offset == 7
    *_, last = rows(log)
    assert last[3] == "open"
    assert log.first_unstable_offset(log.log_end_offset) == last[0]
    offset = log.log_start_offset
    aborted: set[int] = set()
    while offset < log.log_end_offset:
        records = log.read(offset, 1, log.log_end_offset, at_least_one=True)
        aborted |= {start.first_offset for start in log.aborted_transactions(offset, records)}
        offset = log.end_of_segment(offset)
    (first_aborted,) = aborted
    offsets = [row[0] for row in seen]
    assert first_aborted not in offsets
    assert offsets[0] == 7
    logs.close(is_clean=True)


def test_the_way_back_finds_the_files_as_they_were(written: Path):
    before = files(written, *OF_A_LOG)
    checkpoints = {name: offsets(written, name) for name in CHECKPOINTS}
    opened(written).close(is_clean=True)
    after = files(written, *OF_A_LOG)
    assert {name: after.get(name) for name in before} == before
    assert {name: offsets(written, name) for name in CHECKPOINTS} == checkpoints
    assert (written / "data/.kafka_cleanshutdown").exists()
    opened(written).close(is_clean=True)
