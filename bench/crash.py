"""Kill -9 of a broker that leads a third of all partitions, in a real cluster.

Three brokers, one ZooKeeper server, everything on this machine, replication factor 3. The broker is
not the controller, unless ``--controller`` is given. ``unregistered_s`` is until its registration
is gone, which its guardian ends; ``seconds`` until clients of both survivors are told of another
leader for every partition of up to 50 topics, evenly spread. ``isr_s`` is until no ISR of these has
the broker; ``cpu_s`` is the processor time of the survivors until then. ``back_s`` is from the
start of a new process until all ISRs of all partitions have all replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import click

from bench.clusters import own_cluster
from bench.filled_cluster import await_everywhere, create_topics
from bench.frame import benchmark
from bench.kafka_connection import Address
from bench.metadata import await_told, sample
from bench.processes import Usage
from bench.result import Case


@benchmark("crash")
@click.option("--topics", type=click.IntRange(1), default=100, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=10, show_default=True)
@click.option("--controller", is_flag=True, help="Kill the broker that is the controller.")
def main(topics: int, partitions: int, controller: bool) -> Iterator[Case]:
    """Measure one crash."""
    with own_cluster() as cluster:
        names = create_topics(cluster, topics, partitions)
        brokers = cluster.brokers
        cluster.await_agreement(brokers, names[-1])
        killed = next(b for b in brokers if (b == cluster.controller()) == controller)
        survivors = [b for b in brokers if b != killed]
        usage, began = Usage([cluster.pid(b) for b in survivors]), monotonic()
        cluster.kill(killed)
        figures: dict[str, Any] = {"unregistered_s": round(monotonic() - began, 3)}
        addresses = [Address.of(cluster.bootstrap_server(b)) for b in survivors]
        asked = sample(names)
        await_told(addresses, asked, lambda row: row.leader_id not in (killed, -1))
        figures["seconds"] = round(monotonic() - began, 3)
        await_told(addresses, asked, lambda row: killed not in row.isr_nodes)
        figures |= {"isr_s": round(monotonic() - began, 3), **usage.result()}
        await_everywhere(cluster, survivors, lambda row: killed not in row.isr)
        began = monotonic()
        cluster.restart(killed)
        await_everywhere(cluster, survivors, lambda row: len(row.isr) == len(row.replicas))
        figures["back_s"] = round(monotonic() - began, 3)
    yield Case({"partitions": topics * partitions}, figures)
