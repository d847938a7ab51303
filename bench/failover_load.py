"""A new controller loads the cluster and tells all brokers: the real one, with stub brokers.

All partitions, replication factor 3, are written to ZooKeeper in bulk, as if they had been led for
long. Stubs register for the brokers that host them, and a real broker process, which hosts none, is
elected. Then ``--failovers`` times another such process is started, which has never been the
controller, and the controller is killed by ``kill -9``.

``seconds``         from the kill until the last stub has the complete list of its replicas
                    (LeaderAndIsr FULL) and of the cluster (a full UpdateMetadata)
``elected_s``       of it until there is another controller epoch in ZooKeeper
``leadership_s``    of it until the last stub has the list of its replicas
``handled_s``       how long the controller handled its election, by its own journal
``cpu_s``           processor time of the controller's process until it does nothing more. It
                    includes its own metadata cache, which each broker has
``controller_cpu_s``  of it in the threads of the controller: events, and senders to brokers
``zookeeper_cpu_s``   processor time of ZooKeeper
``rss_mb``          memory of the controller's process afterwards
``bytes_per_partition``  sent to one stub
``pauses.*``        how long threads of the controller's process could not run; see bench/pauses.py.
                    ``machine_pauses.*`` are those of a process that does nothing, which the machine
                    caused

The peers read the same ZooKeeper as the controllers of Kafka did: ``sync_seconds`` with one request
at a time, ``pipelined_seconds`` with ten in flight (bench/classic_loading.py). They read and
decode, and no more, so the ratios of their times to ``seconds`` are in their favour. Of more
than ``--sample`` partitions they read a sample, and their times are in proportion.

With ``--profile FILE`` the events of the controllers are profiled (for pstats); then no figure
counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from bench.classic_loading import PIPELINED, SYNC, loading_seconds
from bench.control_plane import ControllerUsage, ControlPlane, replicas_by_broker
from bench.frame import benchmark
from bench.measured_broker import PROFILE
from bench.partition_znodes import topic_sizes, write_topics
from bench.result import Case
from bench.told import CompleteLists


@benchmark("failover-load")
@click.option("--partitions", "counts", type=int, multiple=True, default=(2_000,))
@click.option("--topic-size", type=click.IntRange(1), default=100, show_default=True)
@click.option("--brokers", type=click.IntRange(3), default=3, show_default=True)
@click.option("--failovers", type=click.IntRange(1), default=3, show_default=True)
@click.option("--sample", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--profile", type=click.Path(dir_okay=False), help="Write a profile to this file.")
def main(
    counts: tuple[int, ...],
    topic_size: int,
    brokers: int,
    failovers: int,
    sample: int,
    profile: str | None,
) -> Iterator[Case]:
    """Measure each number of partitions."""
    if profile is not None:
        os.environ[PROFILE] = os.path.abspath(profile)
    for partitions in counts:
        sizes = topic_sizes(partitions, topic_size)
        with ControlPlane(partitions, brokers) as plane:
            write_topics(plane.client, sizes, plane.broker_ids, with_states=True)
            load = FailoverLoad(plane, sizes)
            load.elect_first()
            peers = load.measure_peers(sample)
            for _ in range(failovers):
                yield Case({"partitions": partitions}, load.fail_over(peers))


class FailoverLoad:
    """The failovers of one control plane."""

    def __init__(self, plane: ControlPlane, sizes: Mapping[str, int]) -> None:
        self._plane = plane
        self._sizes = sizes
        self._partitions = sum(sizes.values())
        self._replicas = replicas_by_broker(sizes, plane.broker_ids)

    def elect_first(self) -> None:
        """Start the first candidate, and wait until it is elected and has told all stubs."""
        self._plane.start_candidate().await_ready()
        self._await_complete(self._plane.await_election(0)[0])
        self._plane.await_idle()

    def measure_peers(self, sample: int) -> dict[str, float]:
        """Return the times of Kafka's ways to read."""
        names, chosen = [], 0
        for name, size in self._sizes.items():
            names.append(name)
            chosen += size
            if chosen >= sample:
                break
        share = self._partitions / chosen
        address = self._plane.server.address
        return {
            "sync_seconds": round(loading_seconds(address, names, SYNC) * share, 3),
            "pipelined_seconds": round(loading_seconds(address, names, PIPELINED) * share, 3),
            "peers_read": chosen,
        }

    def fail_over(self, peers: Mapping[str, float]) -> dict[str, Any]:
        """Start another candidate, kill the controller, and measure until all is done."""
        plane = self._plane
        killed, heir = plane.controller(), plane.start_candidate()
        heir.await_ready()
        plane.await_idle()
        epoch = plane.controller_epoch()
        plane.stubs.forget()
        usage = ControllerUsage(plane, heir)
        began = plane.kill(killed)
        epoch, elected = plane.await_election(epoch)
        told = self._await_complete(epoch)
        plane.await_idle()
        seconds = max(each.at or 0.0 for each in told.values()) - began
        return {
            "seconds": round(seconds, 3),
            "elected_s": round(elected - began, 3),
            "leadership_s": round(max(t.leadership or 0.0 for t in told.values()) - began, 3),
            "handled_s": heir.handled_s(epoch),
            **usage.result(),
            "bytes_per_partition": round(max(t.data for t in told.values()) / self._partitions, 1),
            **peers,
            "ratio_to_pipelined": round(peers["pipelined_seconds"] / seconds, 1),
            "ratio_to_sync": round(peers["sync_seconds"] / seconds, 1),
        }

    def _await_complete(self, epoch: int) -> Any:
        return self._plane.await_told(
            lambda broker: CompleteLists(epoch, self._replicas[broker], self._partitions)
        )
