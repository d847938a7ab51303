"""Refuses batches of every kind, with a broker's garbage collector; prints how the process grows.

Run by ``test_refused_batches.py`` in a process of its own.
"""

from __future__ import annotations

import gc
import random
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import cramjam
from kafka.protocol.producer import ProduceRequest

from regent.broker.api.produce import produce_apis
from regent.broker.garbage_collection import limit_pauses
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ProducedPartition, RecordRules
from regent.records.record import varint, zigzag
from tests.broker.api.canned_replicas import CannedReplicas, cached
from tests.support.compressed_frames import FRAMES, gzip, lz4, xerial
from tests.support.record_batches import keyed_batch, resealed
from tests.transport.kafka.wire import ask, call

BATCHES: Final = 1_000
ORDERS_0: Final = TopicPartition("orders", 0)
NOW_MS: Final = 1_700_000_000_000
LARGE: Final = 5 * 2**20  # bytes when unpacked, more than are unpacked at once
CODECS: Final[dict[int, Callable[[bytes], bytes]]] = {
    0: bytes,
    1: gzip,
    2: xerial,
    3: lambda data: lz4(*(data[at : at + 2**16] for at in range(0, len(data), 2**16))),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


def changed(data: bytes, layout: str, at: int, value: int) -> bytes:
    whole = bytearray(data)
    struct.pack_into(layout, whole, at, value)
    return resealed(whole)


def refused_batches() -> Iterator[bytes]:
    """Yield one batch for each codec and reason."""
    long = [(None, b"v" * 1_000)] * (LARGE // 1_000)
    for codec, compress in CODECS.items():

        def batch(data: Callable[[bytes], bytes], codec: int = codec) -> bytes:
            return keyed_batch(*long, attributes=codec, compress=data, timestamp_ms=NOW_MS)

        good = batch(compress)
        yield batch(lambda data: compress(bytes(LARGE)))  # noqa: B023
        yield batch(lambda _: random.Random(1).randbytes(1_000))
        yield batch(lambda data: compress(data)[:-9])  # noqa: B023
        yield batch(lambda data: compress(data[:-1] + b"\1"))  # noqa: B023
        yield batch(lambda data: compress(data + b"\0"))  # noqa: B023
        yield batch(lambda data: compress(data[: len(data) // 2]))  # noqa: B023
        yield changed(changed(good, ">i", 57, 3), ">i", 23, 2)  # fewer records than there are
        yield changed(changed(good, ">i", 57, 9_999), ">i", 23, 9_998)
        yield changed(good, ">q", 27, NOW_MS - 9_000)  # all are too old
        if codec:
            tail = varint(zigzag(200 * 2**20)) + bytes(LARGE)
            yield batch(lambda _: compress(varint(zigzag(2**31 - 9)) + b"\0\0\0\1" + tail))  # noqa: B023
    yield keyed_batch((None, b"v"), attributes=7)
    yield from (frame.batch() for frame in FRAMES.values() if not frame.is_taken)


def old_sets() -> Iterator[bytes]:
    """Yield sets of the old message formats."""
    inner = b"".join(message(1, b"v" * 1_000) for _ in range(LARGE // 1_000))
    for magic in (0, 1):
        for codec in (1, 2, 3):
            compress = CODECS[codec]
            yield message(magic, compress(bytes(LARGE)), codec)
            yield message(magic, compress(inner[:-1] + b"\1"), codec)
            yield message(magic, compress(inner)[:-9], codec)
        yield message(magic, b"v")[:-1] + b"\1"


def message(magic: int, value: bytes, codec: int = 0) -> bytes:
    body = bytes([magic, codec]) + (struct.pack(">q", NOW_MS) if magic else b"")
    body += struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


def produce(data: bytes) -> ProduceRequest:
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=data)
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=[partition])
    return ProduceRequest(transactional_id=None, acks=1, timeout_ms=1_000, topic_data=[topic])


def resident_mb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


def main() -> None:
    limit_pauses()
    replicas = CannedReplicas()
    replicas.rules = {ORDERS_0: RecordRules(True, 1_000, 1_000)}
    replicas.produced = {ORDERS_0: ProducedPartition(Errors.NONE)}
    large = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    apis = produce_apis(replicas, cached(), ThreadPoolExecutor(1), None, large_batches=large)
    requests = [(data, 9) for data in refused_batches()] + [(data, 2) for data in old_sets()]

    for data, version in requests:
        answer = ask(apis, produce(data), version)
        assert answer.responses[0].partition_responses[0].error_code != 0
    for data, version in 2 * requests:  # the allocator's own caches fill
        call(apis, produce(data), version)
    gc.collect()
    before = most = resident_mb()
    for data, version in islice(cycle(requests), BATCHES):
        call(apis, produce(data), version)
        most = max(most, resident_mb())
    sys.stdout.write(f"{most - before} MB more than {before}\n")


if __name__ == "__main__":
    main()
