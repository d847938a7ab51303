"""A batch is written once, even if its sender dies at any step, on a real cluster."""

import os
import signal
import uuid
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as KafkaPosition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructType

from regent.core.model import TopicPartition
from regent.jobs.source import exactly_once, write_once
from regent.jobs.source.columns import OffsetRange
from regent.jobs.source.exactly_once import SendError, send_once
from regent.jobs.source.log_directories import LogReader
from regent.jobs.source.options import BATCH_NUMBER, ReadOptions, Subscription, write_options
from regent.testing.waits import scaled
from tests.genuine_clients.librdkafka import consumer, read_to_end
from tests.support.breakable_cluster import BreakableCluster

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

SCHEMA = StructType().add("value", BinaryType())
PARTITIONS = 2
ROWS = 30
TIMEOUT_S = round(scaled(60))
STEPS = (
    *("init_transactions", "begin_transaction", "produce"),
    *("send_offsets_to_transaction", "commit_transaction"),
)


@pytest.fixture
def topic(cluster: BreakableCluster) -> str:
    """A topic with two partitions."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, PARTITIONS)
    return name


def options(bootstrap: str, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "topic": topic,
        "kafka.transactional.id": f"writer-of-{topic}",
    }


def rows(number: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch, in several pieces."""
    for start in range(number * ROWS, (number + 1) * ROWS, 10):
        yield pa.record_batch({"value": [b"%d" % n for n in range(start, start + 10)]})


def send(
    bootstrap: str,
    topic: str,
    number: int,
    batches: Iterator[pa.RecordBatch] | None = None,
    *,
    query: str = "query",
) -> None:
    wanted = write_options({**options(bootstrap, topic), BATCH_NUMBER: str(number)})
    send_once(batches or rows(number), wanted, query)


def values(cluster: BreakableCluster, topic: str) -> list[int]:
    """Return what a consumer of committed records reads."""
    starts = [KafkaPosition(topic, number, 0) for number in range(PARTITIONS)]
    messages = read_to_end(consumer(cluster.bootstrap_servers), *starts)
    return sorted(int(message.value() or b"") for message in messages)


def send_and_die(bootstrap: str, topic: str, number: int, step: str, *, is_done: bool) -> None:
    """Send a batch, and die before a call of the producer or after it."""
    calls_before = iter(range(ROWS // 2 if step == "produce" else 0))

    def call(method: Any, *arguments: Any, **more: Any) -> Any:
        is_last = next(calls_before, None) is None
        result = None if is_last and not is_done else method(*arguments, **more)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    class MortalProducer(confluent_kafka.Producer):
        def __getattribute__(self, name: str) -> Any:
            method = super().__getattribute__(name)
            return partial(call, method) if name == step else method

    pytest.MonkeyPatch().setattr("regent.jobs.source.exactly_once.Producer", MortalProducer)
    send(bootstrap, topic, number)


def test_a_batch_is_there_once_after_the_death_of_its_writer_at_any_step(
    cluster: BreakableCluster, topic: str
):
    processes = get_context("forkserver")
    processes.set_forkserver_preload([__name__, exactly_once.__name__])
    number = 0
    for step in STEPS:
        for is_done in (False, True):
            arguments = (cluster.bootstrap_servers, topic, number, step)
            process = processes.Process(
                target=send_and_die, args=arguments, kwargs={"is_done": is_done}
            )
            process.start()
            process.join(TIMEOUT_S)
            assert process.exitcode == -signal.SIGKILL
            send(cluster.bootstrap_servers, topic, number)
            number += 1
            assert values(cluster, topic) == list(range(number * ROWS)), (step, is_done)
    send(cluster.bootstrap_servers, topic, number - 1)
    assert values(cluster, topic) == list(range(number * ROWS))


def test_a_writer_that_another_one_has_replaced_cannot_write(cluster: BreakableCluster, topic: str):
    def rows_that_take_long() -> Iterator[pa.RecordBatch]:
        first, *others = rows(0)
        yield first
        send(cluster.bootstrap_servers, topic, 0)
        until = monotonic() + TIMEOUT_S
        while monotonic() < until:  # librdkafka refuses rows that come after the fatal error
            yield from others

    with pytest.raises(SendError, match=r"[Ff]enced|newer"):
        send(cluster.bootstrap_servers, topic, 0, rows_that_take_long())
    assert values(cluster, topic) == list(range(ROWS))


def test_a_batch_with_a_refused_row_leaves_nothing_also_offline(
    cluster: BreakableCluster, topic: str
):
    def rows_with_a_large_one() -> Iterator[pa.RecordBatch]:
        yield from rows(0)
        yield pa.record_batch({"value": [b"x" * 2_000_000]})

    with pytest.raises(SendError, match=f"{topic}: .*too large"):
        send(cluster.bootstrap_servers, topic, 0, rows_with_a_large_one())
    assert values(cluster, topic) == []
    send(cluster.bootstrap_servers, topic, 0)
    assert values(cluster, topic) == list(range(ROWS))
    read: list[int] = []
    for number in range(PARTITIONS):
        partition = TopicPartition(topic, number)
        leader = cluster.log_directories(cluster.leader_of(*partition))
        directories = tuple(map(str, leader))
        logs = ReadOptions(Subscription(topics=(topic,)), directories, include_uncommitted=True)
        reader = LogReader(logs, SCHEMA)
        for part in reader.partitions():
            if not isinstance(part, OffsetRange) or part.partition != partition:
                continue
            for batch in reader.read(part):
                read += map(int, batch["value"].to_pylist())
    assert sorted(read) == list(range(ROWS))


def test_the_numbers_of_another_query_count_from_the_start(cluster: BreakableCluster, topic: str):
    for number in (7, 6, 8):
        send(cluster.bootstrap_servers, topic, number)
    assert values(cluster, topic) == list(range(7 * ROWS, 9 * ROWS)), "6 came before 7"
    for _ in range(2):
        send(cluster.bootstrap_servers, topic, 0, query="another")
    assert values(cluster, topic)[: ROWS + 1] == [*range(ROWS), 7 * ROWS]
    for _ in range(2):
        send(cluster.bootstrap_servers, topic, 2, query="")  # a job that is no stream
    assert values(cluster, topic)[ROWS : 2 * ROWS + 1] == [*range(2 * ROWS, 3 * ROWS), 7 * ROWS]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.filterwarnings(  # py4j leaves sockets of its callbacks to the garbage collector
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_stream_writes_each_row_once_over_restarts(
    session: SparkSession, cluster: BreakableCluster, topic: str, tmp_path: Path
):
    def write(frame: DataFrame, number: int) -> None:
        write_once(frame, number, options(cluster.bootstrap_servers, topic))

    def copy() -> None:
        frame = session.readStream.schema("value string").json(str(tmp_path / "in"))
        writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(TIMEOUT_S)

    (tmp_path / "in").mkdir()
    for number in range(2):
        values_of_file = range(number * ROWS, (number + 1) * ROWS)
        lines = "".join(f'{{"value": "{value}"}}\n' for value in values_of_file)
        (tmp_path / "in" / f"{number}.json").write_text(lines)
        copy()
        for path in (tmp_path / "checkpoint" / "commits").glob(f"*{number}*"):
            path.unlink()  # as if the driver had died between the two commits
    assert values(cluster, topic) == list(range(2 * ROWS))
