"""A broker that leads a third of all partitions crashes: the real controller with stub brokers.

Three stubs or more, replication factor 3. The session of one stub is closed, as the guardian of a
broker does after a crash.

``seconds``       from then until the last survivor has been told of another leader for each
                  partition that the stub led: by LeaderAndIsr of its own replicas, by
                  UpdateMetadata of all
``leadership_s``  of it until the last survivor had been told by LeaderAndIsr

The other figures are those of ``failover-load``; they include what the controller does afterwards
for partitions that the stub only followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from bench.control_plane import ControllerUsage, ControlPlane, replicas_by_broker
from bench.frame import benchmark
from bench.partition_znodes import topic_sizes, write_topics
from bench.result import Case
from bench.told import CompleteLists, Leaders


@benchmark("crash-load")
@click.option("--partitions", "counts", type=int, multiple=True, default=(2_000,))
@click.option("--topic-size", type=click.IntRange(1), default=100, show_default=True)
@click.option("--brokers", type=click.IntRange(3), default=3, show_default=True)
def main(counts: tuple[int, ...], topic_size: int, brokers: int) -> Iterator[Case]:
    """Measure each number of partitions."""
    for partitions in counts:
        with ControlPlane(partitions, brokers) as plane:
            figures = measure(plane, topic_sizes(partitions, topic_size))
        yield Case({"partitions": partitions}, figures)


def measure(plane: ControlPlane, sizes: dict[str, int]) -> dict[str, Any]:
    """Let the first stub crash."""
    brokers, partitions = plane.broker_ids, sum(sizes.values())
    write_topics(plane.client, sizes, brokers, with_states=True)
    controller = plane.start_candidate()
    controller.await_ready()
    epoch, _ = plane.await_election(0)
    replicas = replicas_by_broker(sizes, brokers)
    plane.await_told(lambda broker: CompleteLists(epoch, replicas[broker], partitions))
    plane.await_idle()
    plane.stubs.forget()
    usage = ControllerUsage(plane, controller)
    orphans = replicas_by_broker(sizes, brokers, leader=brokers[0])
    began = plane.stubs.crash(brokers[0])
    told = plane.await_told(
        lambda broker: Leaders(orphans[broker], orphans[brokers[0]], len(brokers), gone=0)
    )
    plane.await_idle()
    return {
        "seconds": round(max(each.at or 0.0 for each in told.values()) - began, 3),
        "leadership_s": round(max(each.leadership or 0.0 for each in told.values()) - began, 3),
        "leaders_elected": orphans[brokers[0]],
        **usage.result(),
        "bytes_per_partition": round(max(t.data for t in told.values()) / partitions, 1),
    }
