"""Writers as Spark uses them, with failing tasks and drivers, on a real cluster."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPosition
from pyspark.sql.types import BinaryType, StringType, StructType

from regent.jobs.source.options import OptionError, WriteOptions
from regent.jobs.source.outgoing import RecordProducer, Row, SendError
from regent.jobs.source.staged_commit import COMMIT_HEADER
from regent.jobs.source.writer import BatchWriter, StreamWriter, TaskRows
from tests.clients.librdkafka import consumer, read_to_end
from tests.support.breakable_cluster import BreakableCluster

SCHEMA = StructType().add("value", BinaryType()).add("topic", StringType())
PARTITIONS = 2


@pytest.fixture
def topic(cluster: BreakableCluster) -> str:
    """A topic with two partitions."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, PARTITIONS)
    return name


def options(cluster: BreakableCluster, staging: Path | None, commit_id: str | None = None):
    return WriteOptions({"bootstrap.servers": cluster.bootstrap_servers}, None, staging, commit_id)


def rows(topic: str, start: int, end: int) -> pa.RecordBatch:
    values = [b"%d" % number for number in range(start, end)]
    return pa.record_batch({"value": values, "topic": [topic] * len(values)})


def a_task_that_fails(topic: str, start: int) -> Iterator[pa.RecordBatch]:
    """Yield ten rows, and fail."""
    yield rows(topic, start, start + 10)
    raise OSError("the executor is gone")


def messages(cluster: BreakableCluster, topic: str) -> list[Message]:
    starts = [KafkaPosition(topic, number, 0) for number in range(PARTITIONS)]
    return read_to_end(consumer(cluster.bootstrap_servers), *starts)


def numbers(cluster: BreakableCluster, topic: str) -> list[int]:
    return sorted(int(message.value() or b"") for message in messages(cluster, topic))


pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


def test_with_staging_a_repeated_task_writes_once(
    cluster: BreakableCluster, topic: str, tmp_path: Path
):
    writer = BatchWriter(options(cluster, tmp_path), SCHEMA, overwrite=False)
    with pytest.raises(OSError, match="the executor is gone"):
        writer.write(a_task_that_fails(topic, 0))
    abandoned = writer.write(iter([rows(topic, 0, 20)]))  # by an executor that Spark gave up
    staged = [
        writer.write(iter([rows(topic, n, n + 10), rows(topic, n + 10, n + 20)])) for n in (0, 20)
    ]
    empty = writer.write(iter([]))
    assert numbers(cluster, topic) == []
    writer.commit([*staged, empty, None])
    assert numbers(cluster, topic) == list(range(40))
    assert abandoned.count == 20
    assert list((tmp_path / "incoming").iterdir()) == []
    another = BatchWriter(options(cluster, tmp_path), SCHEMA, overwrite=False)
    another.abort([another.write(iter([rows(topic, 0, 20)]))])
    assert list((tmp_path / "incoming").iterdir()) == []
    assert numbers(cluster, topic) == list(range(40))


def test_without_staging_a_repeated_task_may_write_twice(cluster: BreakableCluster, topic: str):
    writer = BatchWriter(options(cluster, None), SCHEMA, overwrite=False)
    with pytest.raises(OSError, match="the executor is gone"):
        writer.write(a_task_that_fails(topic, 0))
    done = writer.write(iter([rows(topic, 0, 20)]))
    writer.commit([done])
    assert isinstance(done, TaskRows)
    assert done.count == 20
    assert set(numbers(cluster, topic)) == set(range(20))


class DriverDiedError(Exception):
    """The driver dies in the middle of a commit."""


def die_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let a producer send ``count`` rows, which arrive; then its driver dies."""
    send, left = RecordProducer.send, iter(range(count))

    def send_some(self: RecordProducer, row: Row) -> None:
        if next(left, None) is None:
            self.finish()
            raise DriverDiedError
        send(self, row)

    monkeypatch.setattr(RecordProducer, "send", send_some)


@pytest.mark.parametrize("count", [0, 1, 13, 30])
def test_a_commit_continues_after_the_death_of_its_driver(
    cluster: BreakableCluster, topic: str, tmp_path: Path, count: int
):
    def batch(first: int) -> StreamWriter:
        writer = StreamWriter(options(cluster, tmp_path), SCHEMA)
        staged = (writer.write(iter([rows(topic, n, n + 15)])) for n in (first, first + 15))
        writer.commit([*staged], first // 30)
        return writer

    batch(0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        die_after(monkeypatch, count)
        if count < 30:
            with pytest.raises(DriverDiedError):
                batch(30)
    batch(30)  # Spark computes the micro-batch again after a restart
    batch(30)  # and once more
    batch(60)
    assert numbers(cluster, topic) == list(range(90))
    marks = [dict(message.headers() or ()) for message in messages(cluster, topic)]
    assert len({mark[COMMIT_HEADER] for mark in marks}) == 90
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["batch-2.done", "incoming"]


def test_a_write_with_an_id_is_done_once(cluster: BreakableCluster, topic: str, tmp_path: Path):
    for _ in range(2):
        writer = BatchWriter(options(cluster, tmp_path, "july"), SCHEMA, overwrite=False)
        writer.commit([writer.write(iter([rows(topic, 0, 10)]))])
    assert numbers(cluster, topic) == list(range(10))


def test_rows_without_a_topic_and_refused_rows_are_errors(cluster: BreakableCluster, topic: str):
    writer = BatchWriter(options(cluster, None), SCHEMA, overwrite=False)
    nowhere = pa.record_batch({"value": [b"x"], "topic": pa.array([None], "string")})
    with pytest.raises(SendError, match="a row has no topic"):
        writer.write(iter([nowhere]))
    with pytest.raises(SendError, match=r"no/where.*[Ii]nvalid topic"):
        writer.write(iter([rows("no/where", 0, 3)]))
    large = pa.record_batch({"value": [b"x" * 2_000_000], "topic": [topic]})
    with pytest.raises(SendError, match=rf"{topic}: .*too large"):
        writer.write(iter([large]))
    assert numbers(cluster, topic) == []


def test_records_cannot_be_overwritten(cluster: BreakableCluster):
    with pytest.raises(OptionError, match="mode append"):
        BatchWriter(options(cluster, None), SCHEMA, overwrite=True)
