"""Every partition of a topic moves a replica to another broker, on any cluster.

Replication factor 2 on three brokers: of the replicas (a, b) of each partition, b moves to the
third broker. ``--megabytes`` are in the topic, 10^6 bytes of values. ``seconds`` is from the
request until no partition is being moved any more. ``mb_per_s`` is what was copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic

import click

from bench.clients import TIMEOUT_S, broker_ports
from bench.clusters import cluster_at
from bench.consume import fill
from bench.frame import benchmark
from bench.kafka_connection import Address, KafkaConnection, check
from bench.processes import Usage
from bench.result import Case
from bench.topics import Topics, existing
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

RECORD_BYTES = 10_000
REQUEST_TIMEOUT_MS = 60_000
POLL_S = 0.02


@benchmark("reassign", any_cluster=True)
@click.option("--partitions", type=click.IntRange(1), default=100, show_default=True)
@click.option("--megabytes", type=click.IntRange(0), default=100, show_default=True)
def main(bootstrap: str | None, partitions: int, megabytes: int) -> Iterator[Case]:
    """Fill a topic, and move a half of its replicas."""
    with cluster_at(bootstrap) as servers, existing(Topics(servers, 1, partitions, 2)) as topics:
        topic = topics.names[0]
        fill(servers, topic, partitions, RECORD_BYTES, megabytes * 1_000_000 // RECORD_BYTES)
        metadata = topics.admin.list_topics(timeout=TIMEOUT_S)
        brokers = sorted(metadata.brokers)
        controller = metadata.brokers[metadata.controller_id]
        targets = {
            number: [row.replicas[0], next(b for b in brokers if b not in row.replicas)]
            for number, row in metadata.topics[topic].partitions.items()
        }
        usage, began = Usage.of_ports(broker_ports(servers)), monotonic()
        asyncio.run(_move(Address.of(f"{controller.host}:{controller.port}"), topic, targets))
        seconds = monotonic() - began
        figures = {
            "seconds": round(seconds, 3),
            "partitions_per_s": round(partitions / seconds, 1),
            "mb_per_s": round(megabytes / seconds, 1),
            **usage.result(),
        }
    yield Case({"partitions": partitions, "megabytes": megabytes}, figures)


async def _move(address: Address, topic: str, targets: Mapping[int, Sequence[int]]) -> None:
    """Ask the controller's broker for the moves, and wait until it lists none."""
    rows = tuple(
        ReassignablePartition(partition_index=number, replicas=tuple(replicas))
        for number, replicas in targets.items()
    )
    moves = AlterPartitionReassignmentsRequest(
        timeout_ms=REQUEST_TIMEOUT_MS, topics=(ReassignableTopic(name=topic, partitions=rows),)
    )
    wanted = ListPartitionReassignmentsRequest(timeout_ms=REQUEST_TIMEOUT_MS, topics=None)
    async with await KafkaConnection.to(address) as connection:
        answer = await connection.ask(moves)
        check(answer.error_code)
        for row in answer.responses[0].partitions:
            check(row.error_code)
        while (await connection.ask(wanted)).topics:
            await asyncio.sleep(POLL_S)
