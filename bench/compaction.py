"""How fast logs are compacted.

For each size of record and number of records in a batch, a log of ``--megabytes`` is written, with
each key ten times, and cleaned once. ``mb_per_s`` is 10^6 bytes of the log before the cleaning in a
second; the cleaner reads them twice. It has this process for itself: in a broker it makes way for
other threads.

With ``--bootstrap HOST:PORT`` the same records go to a compacted topic of any cluster, with one
replica. They are not compacted before all are written (``min.compaction.lag.ms``). The time counts
from then until the log on the disk is small and shrinks no more. It includes the pause between two
looks for logs to clean: set ``log.cleaner.backoff.ms`` to a second, and compare long logs. Only
full segments are cleaned, and counted. Single-record batches take a request each.

``cpu_s`` is the work of it: the processor time of the threads that clean. The rest of ``seconds``
the cleaner waited: for disks, for other threads and programs, or for the next look. A broker must
be on this machine; ``broker_cpu_s`` is the processor time of all its threads.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import click
from confluent_kafka import Producer

from bench.clients import send
from bench.frame import benchmark
from bench.kafka_connection import Address, log_bytes
from bench.processes import cpu_seconds, cpu_seconds_of_threads, listening_on
from bench.result import Case
from bench.topics import Topics, existing, set_topic_config
from regent.core import model
from regent.core.log_config import LogConfig
from regent.core.replica_logs import NO_TIMESTAMP
from regent.records.record_batch import build_batch
from regent.storage.log_manager import LogManager

Figures: TypeAlias = dict[str, Any]

SHAPES = ((1_000, 16), (1_000, 1), (100, 100), (100, 1))  # bytes of a value, records in a batch
VERSIONS = 10
SEGMENT_BYTES = 64 * 1024 * 1024
CLUSTER_SEGMENT_BYTES = 16 * 1024 * 1024
TIMEOUT_S = 600.0
POLL_S = 0.1
SETTLED_S = 5.0  # a cleaner works for so long at a segment at most
LEFT = 0.15  # of a clean log, more or less: a tenth of the records, and headers of batches
CLEANER_THREADS = ("log-cleaner", "kafka-log-clean")  # as the kernel keeps ours and Kafka's
_KEY = struct.Struct(">q")
_LAG = "min.compaction.lag.ms"
_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(CLUSTER_SEGMENT_BYTES),
    _LAG: "3600000",
}


def keys(count: int) -> Iterator[bytes]:
    """Yield keys in random order, each ten times on average."""
    dice = random.Random(1)
    for _ in range(count):
        yield _KEY.pack(dice.randrange(max(1, count // VERSIONS)))


def batch(batch_keys: list[bytes], value: bytes) -> bytearray:
    """Return a batch as a producer sends it."""
    now_ms = time.time_ns() // 1_000_000
    return build_batch([(key, value) for key in batch_keys], now_ms)


def of_a_log(megabytes: int, size: int, per_batch: int) -> Figures:
    """Clean a log in this process."""
    path = Path(tempfile.mkdtemp())
    config = LogConfig(
        cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, segment_bytes=SEGMENT_BYTES
    )
    logs = LogManager([path], 1, defaults=config)
    logs.open()
    try:
        topic_partition = model.TopicPartition("compacted", 0)
        log = logs.get_or_create(topic_partition, None, is_new=True)
        waiting, value = [], random.Random(2).randbytes(size)
        for key in keys(megabytes * 1_000_000 // (size + _KEY.size)):
            waiting.append(key)
            if len(waiting) == per_batch:
                log.append_as_leader(batch(waiting, value), 0)
                waiting = []
        with log.exclusively() as contents:
            contents.roll(contents.log_end_offset, NO_TIMESTAMP)
        log.flush()
        logs.checkpoint_high_watermarks({topic_partition: log.log_end_offset})
        before, begun, used = log.size, time.perf_counter(), time.process_time()
        logs.cleaner.clean_all()
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        return _figures(before, log.log_end_offset, seconds) | {
            "left_mb": round(log.size / 1e6, 1),
            "cpu_s": round(used, 2),
        }
    finally:
        logs.close(is_clean=False)
        shutil.rmtree(path)


def of_a_cluster(bootstrap: str, megabytes: int, size: int, per_batch: int) -> Figures:
    """Let a cluster clean a topic."""
    with existing(Topics(bootstrap, 1, 1, replicas=1), _CONFIG) as topics:
        admin, (topic,) = topics.admin, topics.names
        count = megabytes * 1_000_000 // (size + _KEY.size)
        _produce(bootstrap, topic, count, size, per_batch)
        metadata = admin.list_topics(topic, timeout=TIMEOUT_S)
        leader = metadata.brokers[metadata.topics[topic].partitions[0].leader]
        address = Address.of(f"{leader.host}:{leader.port}")
        pid = listening_on(address.port)
        before = asyncio.run(log_bytes(address, topic))
        used, cleaned = cpu_seconds(pid), _cleaner_cpu_s(pid)
        begun = time.perf_counter()
        set_topic_config(admin, topic, _LAG, "0")
        left, ended = asyncio.run(_cleaned(address, topic, before))
        closed = before - before % CLUSTER_SEGMENT_BYTES
        records = count * closed // before
        return _figures(closed, records, ended - begun) | {
            "left_mb": round(left / 1e6, 1),
            "cpu_s": round(_cleaner_cpu_s(pid) - cleaned, 2),
            "broker_cpu_s": round(cpu_seconds(pid) - used, 2),
        }


def _cleaner_cpu_s(pid: int | None) -> float:
    """Return the processor time so far of the threads of a broker that clean logs."""
    if pid is None:
        return 0.0
    return sum(cpu_seconds_of_threads(pid, name) for name in CLEANER_THREADS)


def _produce(bootstrap: str, topic: str, count: int, size: int, per_batch: int) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.num.messages": per_batch}
    )
    value = random.Random(2).randbytes(size)
    for key in keys(count):
        send(producer, topic, value, 0, key=key)
    if producer.flush(TIMEOUT_S):
        raise click.ClickException("not everything was acknowledged")


async def _cleaned(address: Address, topic: str, before: int) -> tuple[int, float]:
    """Wait until a log is clean; return its size, and when it got it."""
    begun = changed = time.perf_counter()
    size, most = before, LEFT * before + CLUSTER_SEGMENT_BYTES
    while size > most or time.perf_counter() - changed < SETTLED_S:
        if time.perf_counter() - begun > TIMEOUT_S:
            raise click.ClickException("it was not compacted in time")
        await asyncio.sleep(POLL_S)
        former, size = size, await log_bytes(address, topic)
        if size != former:
            changed = time.perf_counter()
    return size, changed


def _figures(log_bytes: int, records: int, seconds: float) -> Figures:
    return {
        "log_mb": round(log_bytes / 1e6, 1),
        "seconds": round(seconds, 2),
        "mb_per_s": round(log_bytes / 1e6 / seconds, 1),
        "records_per_s": round(records / seconds),
    }


@benchmark(any_cluster=True)
@click.option("--megabytes", default=200, show_default=True, help="The size of a log.")
def compaction(bootstrap: str | None, megabytes: int) -> Iterator[Case]:
    """Measure how fast logs are compacted."""
    for size, per_batch in SHAPES:
        if bootstrap is None:
            figures = of_a_log(megabytes, size, per_batch)
        else:
            figures = of_a_cluster(bootstrap, megabytes, size, per_batch)
        yield Case({"value_bytes": size, "records_per_batch": per_batch}, figures)
