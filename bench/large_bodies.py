"""The size and encoding time of the requests of a failover with many one-partition topics.

It builds a controller's memory (no ZooKeeper, no brokers) and encodes what one broker is told.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import click

from bench.frame import benchmark
from bench.result import Case
from regent.core.controller.context import ControllerContext
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.model import (
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.api import ApiKey
from regent.transport.control.codec import encode_request, max_request_bytes


@benchmark("large-bodies")
@click.option("--topics", type=click.IntRange(1), default=800_000, show_default=True)
def main(topics: int) -> Iterator[Case]:
    """Measure once."""
    yield Case({"topics": topics}, measure(batch_of(topics)))


def batch_of(topics: int) -> ControlRequestBatch:
    """Return what one broker of three is told about all topics, of one partition each."""
    context = ControllerContext()
    context.epoch = 1
    for broker_id in range(3):
        info = BrokerInfo(broker_id, (EndPoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id),))
        context.add_live_broker(BrokerRegistration(info, 100 + broker_id))
    led = LeaderIsrAndControllerEpoch(LeaderAndIsr(0, (0, 1, 2)), 1)
    assignment = ReplicaAssignment((0, 1, 2))
    batch = ControlRequestBatch(0, context)
    batch.make_full([0])
    for number in range(topics):
        name = TopicPartition(f"a-topic-with-an-ordinary-name-{number:07d}", 0)
        context.add_topic_id(name.topic, f"{number:022d}")
        context.update_partition_full_replica_assignment(name, assignment)
        context.put_partition_leadership_info(name, led)
        batch.add_leader_and_isr([0], [name])
    batch.add_full_metadata()
    return batch


def measure(batch: ControlRequestBatch) -> dict[str, float]:
    """Encode every body once."""
    started = time.monotonic()
    effects = batch.effects()
    built = time.monotonic()
    slowest_ms = 0.0
    sizes: dict[int, int] = {}
    for effect in effects:
        if id(effect.request) not in sizes:
            before = time.monotonic()
            sizes[id(effect.request)] = sum(map(len, encode_request(effect.request).frames))
            slowest_ms = max(slowest_ms, (time.monotonic() - before) * 1000)
    return {
        "bodies": len(sizes),
        "bytes": sum(sizes.values()),
        "largest_body_bytes": max(sizes.values()),
        "limit_bytes": max_request_bytes(ApiKey.LEADER_AND_ISR),
        "batch_s": round(built - started, 2),
        "encode_s": round(time.monotonic() - built, 2),
        "slowest_body_ms": round(slowest_ms, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
