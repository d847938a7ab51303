"""``python -m bench.compaction``: how fast logs are compacted; prints JSON.

For each size of record and number of records in a batch, a log of ``--megabytes`` is written, with
each key ten times, and cleaned once. ``mb_per_s`` is 10^6 bytes of the log before the cleaning in a
second; the cleaner reads them twice. It has this process for itself: in a broker it makes way for
other threads.

With ``--bootstrap`` the same records go to a compacted topic of any cluster, with one replica. The
time counts until a consumer finds no more than one record a key outside of the active segment. It
includes the pauses between two looks for logs to clean (``log.cleaner.backoff.ms``) and between two
checkpoints of high watermarks: set both to a second, and compare long logs.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import click
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from regent.core import model
from regent.core.log_config import LogConfig
from regent.core.replica_logs import NO_TIMESTAMP
from regent.core.varints import varint
from regent.storage.log_manager import LogManager
from regent.storage.record_batch import BatchHeader, encode

Result: TypeAlias = dict[str, Any]

SHAPES = ((1_000, 16), (1_000, 1), (100, 100), (100, 1))  # bytes of a value, records in a batch
VERSIONS = 10
SEGMENT_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 600.0
_KEY = struct.Struct(">q")
_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(SEGMENT_BYTES),
}


def keys(count: int) -> Iterator[bytes]:
    """Yield keys in random order, each ten times on average."""
    dice = random.Random(1)
    for _ in range(count):
        yield _KEY.pack(dice.randrange(max(1, count // VERSIONS)))


def batch(batch_keys: list[bytes], value: bytes) -> bytearray:
    """Return a batch as a producer sends it."""
    records = bytearray()
    for number, key in enumerate(batch_keys):
        body = b"\0\0" + varint(number << 1) + varint(len(key) << 1) + key
        body += varint(len(value) << 1) + value + b"\0"
        records += varint(len(body) << 1) + body
    count = len(batch_keys)
    now_ms = time.time_ns() // 1_000_000
    header = BatchHeader(0, 0, 0, 2, 0, 0, count - 1, now_ms, now_ms, -1, -1, -1, count)
    return bytearray(encode(header, bytes(records)))


def of_a_log(megabytes: int, size: int, per_batch: int) -> Result:
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
        before, begun = log.size, time.perf_counter()
        logs.cleaner.clean_all()
        seconds = time.perf_counter() - begun
        return _result(size, per_batch, before, log.log_end_offset, seconds) | {
            "left_mb": round(log.size / 1e6, 1)
        }
    finally:
        logs.close(is_clean=False)
        shutil.rmtree(path)


def of_a_cluster(bootstrap: str, megabytes: int, size: int, per_batch: int) -> Result:
    """Let a cluster clean a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1, config=_CONFIG)])[topic].result(TIMEOUT_S)
    try:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.num.messages": per_batch}
        )
        count, value = megabytes * 1_000_000 // (size + _KEY.size), random.Random(2).randbytes(size)
        for key in keys(count):
            while True:
                try:
                    producer.produce(topic, key=key, value=value)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(TIMEOUT_S)
        begun = time.perf_counter()
        in_active = SEGMENT_BYTES // (size + _KEY.size)
        while _records_left(bootstrap, topic) > count // VERSIONS + in_active:
            if time.perf_counter() - begun > TIMEOUT_S:
                raise click.ClickException("it was not compacted in time")
            time.sleep(0.2)
        seconds = time.perf_counter() - begun
        return _result(size, per_batch, count * (size + _KEY.size), count, seconds)
    finally:
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)


def _records_left(bootstrap: str, topic: str) -> int:
    """Return how many records a consumer reads."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.partition.eof": True}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        count = 0
        while True:
            for message in consumer.consume(10_000, TIMEOUT_S):
                error = message.error()
                if error is None:
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    return count
                else:
                    raise click.ClickException(str(error))


def _result(size: int, per_batch: int, log_bytes: int, records: int, seconds: float) -> Result:
    return {
        "value_bytes": size,
        "records_per_batch": per_batch,
        "log_mb": round(log_bytes / 1e6, 1),
        "seconds": round(seconds, 2),
        "mb_per_s": round(log_bytes / 1e6 / seconds, 1),
        "records_per_s": round(records / seconds),
    }


@click.command()
@click.option("--bootstrap", help="Measure this cluster, HOST:PORT, instead of this process.")
@click.option("--megabytes", default=200, show_default=True, help="The size of a log.")
def main(bootstrap: str | None, megabytes: int) -> None:
    """Measure how fast logs are compacted."""
    for size, per_batch in SHAPES:
        if bootstrap is None:
            result = of_a_log(megabytes, size, per_batch)
        else:
            result = of_a_cluster(bootstrap, megabytes, size, per_batch)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
