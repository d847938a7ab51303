"""The real controller with stub brokers, three or more; replication factor 3.

``cpu_s``           processor time of the controller's process until it does nothing more. It
                    includes its own metadata cache, which each broker has
``controller_cpu_s``  of it in the threads of the controller: events, and senders to brokers
``zookeeper_cpu_s``   processor time of ZooKeeper
``rss_mb``          memory of the controller's process afterwards
``bytes_per_partition``  sent to one stub
``pauses.*``        how long threads of the controller's process could not run; see bench/pauses.py.
                    ``machine_pauses.*`` are those of a process that does nothing, which the machine
                    caused
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click

from bench.classic_loading import PIPELINED, SYNC, loading_seconds
from bench.control_plane import Candidate, ControllerUsage, ControlPlane, replicas_by_broker
from bench.frame import benchmark
from bench.partition_znodes import topic_sizes, write_topics
from bench.pauses import PROFILE
from bench.result import Case
from bench.told import CompleteLists, Leaders, Told
from regent.core.model import BrokerId

F = TypeVar("F", bound=Callable[..., Any])


def plane_options(measure: F) -> F:
    """Add the options for the size of the cluster."""
    for option in (
        click.option("--brokers", type=click.IntRange(3), default=3, show_default=True),
        click.option("--topic-size", type=click.IntRange(1), default=100, show_default=True),
        click.option("--partitions", "counts", type=int, multiple=True, default=(2_000,)),
    ):
        measure = option(measure)
    return measure


@benchmark()
@plane_options
@click.option("--failovers", type=click.IntRange(1), default=3, show_default=True)
@click.option("--sample", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--profile", type=click.Path(dir_okay=False), help="Write a profile to this file.")
def failover_load(
    counts: tuple[int, ...],
    topic_size: int,
    brokers: int,
    failovers: int,
    sample: int,
    profile: str | None,
) -> Iterator[Case]:
    """Let a new controller load the cluster and tell all brokers.

    All partitions are written to ZooKeeper in bulk, as if they had been led for long. Stubs
    register for the brokers that host them, and a real broker process, which hosts none, is
    elected. Then ``--failovers`` times another such process is started, which has never been the
    controller, and the controller is killed by ``kill -9``.

    ``seconds``         from the kill until the last stub has the complete list of its replicas
                        (LeaderAndIsr FULL) and of the cluster (a full UpdateMetadata)
    ``elected_s``       of it until there is another controller epoch in ZooKeeper
    ``leadership_s``    of it until the last stub has the list of its replicas
    ``handled_s``       how long the controller handled its election, by its own journal

    The peers read the same ZooKeeper as the controllers of Kafka did: ``sync_seconds`` with one
    request at a time, ``pipelined_seconds`` with ten in flight (bench/classic_loading.py). They
    read and decode, and no more, so the ratios of their times to ``seconds`` are in their favour.
    Of more than ``--sample`` partitions they read a sample, and their times are in proportion.

    With ``--profile FILE`` the events of the controllers are profiled (for pstats); then no figure
    counts.
    """
    if profile is not None:
        os.environ[PROFILE] = os.path.abspath(profile)
    for partitions in counts:
        sizes = topic_sizes(partitions, topic_size)
        with ControlPlane(partitions, brokers) as plane:
            _elect_first(plane, sizes)
            peers = _peers(plane, sizes, sample)
            for _ in range(failovers):
                yield Case({"partitions": partitions}, _fail_over(plane, sizes, peers))


@benchmark()
@plane_options
def create_load(counts: tuple[int, ...], topic_size: int, brokers: int) -> Iterator[Case]:
    """Create topics in bulk.

    All topics are written to ZooKeeper, many in a transaction; the controller sees them, elects all
    leaders and tells all brokers.

    ``seconds``    from the first write until the last stub has been told of each of its replicas
                   (LeaderAndIsr), and of a leader of each partition (UpdateMetadata)
    ``written_s``  of it until the last topic was written
    """
    for partitions in counts:
        sizes = topic_sizes(partitions, topic_size)
        with ControlPlane(partitions, brokers) as plane:
            controller = _elect_first(plane, {})
            replicas = replicas_by_broker(sizes, plane.broker_ids)
            plane.stubs.forget()
            usage, began = ControllerUsage(plane, controller), time.monotonic()
            write_topics(plane.client, sizes, plane.broker_ids, with_states=False)
            written_s = round(time.monotonic() - began, 3)
            told = plane.await_told(lambda b: Leaders(replicas[b], partitions))  # noqa: B023
            figures = _figures(plane, usage, told, began, partitions)
        created = {
            "written_s": written_s,
            "partitions_per_s": round(partitions / figures["seconds"]),
        }
        yield Case({"partitions": partitions}, figures | created)


@benchmark()
@plane_options
def crash_load(counts: tuple[int, ...], topic_size: int, brokers: int) -> Iterator[Case]:
    """Let a broker crash that leads a third of all partitions, or less with more brokers.

    The session of one stub is closed, as the guardian of a broker does after a crash.

    ``seconds``       from then until the last survivor has been told of another leader for each
                      partition that the stub led: by LeaderAndIsr of its own replicas, by
                      UpdateMetadata of all
    ``leadership_s``  of it until the last survivor had been told by LeaderAndIsr

    The other figures include what the controller does afterwards for partitions that the stub only
    followed.
    """
    for partitions in counts:
        sizes = topic_sizes(partitions, topic_size)
        with ControlPlane(partitions, brokers) as plane:
            controller = _elect_first(plane, sizes)
            plane.stubs.forget()
            usage, first = ControllerUsage(plane, controller), plane.broker_ids[0]
            orphans = replicas_by_broker(sizes, plane.broker_ids, leader=first)
            began = plane.stubs.crash(first)
            told = plane.await_told(
                lambda b: Leaders(orphans[b], orphans[first], brokers, gone=0)  # noqa: B023
            )
            figures = _figures(plane, usage, told, began, partitions)
        yield Case({"partitions": partitions}, {**figures, "leaders_elected": orphans[first]})


def _elect_first(plane: ControlPlane, sizes: Mapping[str, int]) -> Candidate:
    """Write these topics, and return the first candidate when it has told all stubs of them."""
    write_topics(plane.client, sizes, plane.broker_ids, with_states=True)
    controller = plane.start_candidate()
    controller.await_ready()
    epoch, _ = plane.await_election(0)
    if sizes:
        _await_complete(plane, sizes, epoch)
    plane.await_idle()
    return controller


def _await_complete(
    plane: ControlPlane, sizes: Mapping[str, int], epoch: int
) -> Mapping[BrokerId, Told]:
    replicas, partitions = replicas_by_broker(sizes, plane.broker_ids), sum(sizes.values())
    return plane.await_told(lambda broker: CompleteLists(epoch, replicas[broker], partitions))


def _figures(
    plane: ControlPlane,
    usage: ControllerUsage,
    told: Mapping[BrokerId, Told],
    began: float,
    partitions: int,
) -> dict[str, Any]:
    """Return what all three measure, when the controller does nothing more."""
    plane.await_idle()
    return {
        "seconds": round(max(each.at or 0.0 for each in told.values()) - began, 3),
        "leadership_s": round(max(each.leadership or 0.0 for each in told.values()) - began, 3),
        **usage.result(),
        "bytes_per_partition": round(max(t.data for t in told.values()) / partitions, 1),
    }


def _peers(plane: ControlPlane, sizes: Mapping[str, int], sample: int) -> dict[str, float]:
    """Return the times of Kafka's ways to read."""
    names, chosen = [], 0
    for name, size in sizes.items():
        names.append(name)
        chosen += size
        if chosen >= sample:
            break
    share, address = sum(sizes.values()) / chosen, plane.server.address
    return {
        "sync_seconds": round(loading_seconds(address, names, SYNC) * share, 3),
        "pipelined_seconds": round(loading_seconds(address, names, PIPELINED) * share, 3),
        "peers_read": chosen,
    }


def _fail_over(
    plane: ControlPlane, sizes: Mapping[str, int], peers: Mapping[str, float]
) -> dict[str, Any]:
    """Start another candidate, kill the controller, and measure until all is done."""
    killed, heir = plane.controller(), plane.start_candidate()
    heir.await_ready()
    plane.await_idle()
    epoch = plane.controller_epoch()
    plane.stubs.forget()
    usage = ControllerUsage(plane, heir)
    began = plane.kill(killed)
    epoch, elected = plane.await_election(epoch)
    told = _await_complete(plane, sizes, epoch)
    figures = _figures(plane, usage, told, began, sum(sizes.values()))
    return {
        **figures,
        "elected_s": round(elected - began, 3),
        "handled_s": heir.handled_s(epoch),
        **peers,
        "ratio_to_pipelined": round(peers["pipelined_seconds"] / figures["seconds"], 1),
        "ratio_to_sync": round(peers["sync_seconds"] / figures["seconds"], 1),
    }
