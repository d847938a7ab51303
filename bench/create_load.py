"""Topics are created in bulk, by the real controller with stub brokers.

Three stubs or more, replication factor 3. All topics are written to ZooKeeper, many in a
transaction; the controller sees them, elects all leaders and tells all brokers.

``seconds``    from the first write until the last stub has been told of each of its replicas
               (LeaderAndIsr), and of a leader of each partition (UpdateMetadata)
``written_s``  of it until the last topic was written

The other figures are those of ``failover-load``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from bench.control_plane import ControllerUsage, ControlPlane, replicas_by_broker
from bench.frame import benchmark
from bench.partition_znodes import topic_sizes, write_topics
from bench.result import Case
from bench.told import Leaders


@benchmark("create-load")
@click.option("--partitions", "counts", type=int, multiple=True, default=(2_000,))
@click.option("--topic-size", type=click.IntRange(1), default=100, show_default=True)
@click.option("--brokers", type=click.IntRange(3), default=3, show_default=True)
def main(counts: tuple[int, ...], topic_size: int, brokers: int) -> Iterator[Case]:
    """Measure each number of partitions."""
    for partitions in counts:
        with ControlPlane(partitions, brokers) as plane:
            figures = measure(plane, partitions, topic_size)
        yield Case({"partitions": partitions}, figures)


def measure(plane: ControlPlane, partitions: int, topic_size: int) -> dict[str, Any]:
    """Create all topics."""
    sizes = topic_sizes(partitions, topic_size)
    replicas = replicas_by_broker(sizes, plane.broker_ids)
    controller = plane.start_candidate()
    controller.await_ready()
    plane.await_election(0)
    plane.await_idle()
    plane.stubs.forget()
    usage, began = ControllerUsage(plane, controller), time.monotonic()
    write_topics(plane.client, sizes, plane.broker_ids, with_states=False)
    written_s = time.monotonic() - began
    told = plane.await_told(lambda broker: Leaders(replicas[broker], partitions))
    plane.await_idle()
    seconds = max(each.at or 0.0 for each in told.values()) - began
    return {
        "seconds": round(seconds, 3),
        "written_s": round(written_s, 3),
        "partitions_per_s": round(partitions / seconds),
        **usage.result(),
        "bytes_per_partition": round(max(t.data for t in told.values()) / partitions, 1),
    }
