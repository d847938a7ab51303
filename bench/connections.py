"""Many connections to one broker, of any cluster on this machine.

``--connections`` are opened, some at a time, and each sends one ApiVersions request: ``opened_s``
is until all are answered. Then all send another one at the same time: ``answered_s``.
``kb_per_connection`` is how much the memory of the broker grew, ``cpu_ms_per_connection`` its
processor time to open one. While all are idle, ``idle_cpu_percent`` of a processor is used.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Any

import click

from bench.clients import broker_addresses
from bench.clusters import cluster_at
from bench.frame import benchmark
from bench.kafka_connection import CLIENT_ID, TIMEOUT_S, Address, KafkaConnection
from bench.processes import cpu_seconds, local_processes, resident_mb
from bench.result import Case
from regent.transport.kafka.api import KafkaApiKey

OPENING = 100  # at a time
IDLE_S = 2.0
_BODY = struct.pack(">hhih", KafkaApiKey.API_VERSIONS, 0, 1, len(CLIENT_ID)) + CLIENT_ID
API_VERSIONS = struct.pack(">i", len(_BODY)) + _BODY


@benchmark("connections", any_cluster=True)
@click.option("--connections", "counts", type=int, multiple=True, default=(1_000,))
def main(bootstrap: str | None, counts: tuple[int, ...]) -> Iterator[Case]:
    """Measure each number of connections."""
    with cluster_at(bootstrap) as servers:
        address = broker_addresses(servers)[0]
        (pid,) = local_processes([address.port])
        for connections in counts:
            figures = asyncio.run(measure(address, pid, connections))
            yield Case({"connections": connections}, figures)


async def measure(address: Address, pid: int, count: int) -> dict[str, Any]:
    """Open the connections, use them, and close them."""
    with ExitStack() as undo:
        cpu, memory_mb, began = cpu_seconds(pid), resident_mb(pid), monotonic()
        opened: list[KafkaConnection] = []
        while len(opened) < count:
            number = min(OPENING, count - len(opened))
            some = await asyncio.gather(*(KafkaConnection.to(address) for _ in range(number)))
            for connection in some:
                undo.callback(connection.close)
            await _ask_all(some)
            opened += some
        opened_s, opening_cpu = monotonic() - began, cpu_seconds(pid) - cpu
        began = monotonic()
        await _ask_all(opened)
        answered_s = monotonic() - began
        grown_mb, cpu = resident_mb(pid) - memory_mb, cpu_seconds(pid)
        await asyncio.sleep(IDLE_S)
        return {
            "opened_s": round(opened_s, 3),
            "answered_s": round(answered_s, 3),
            "kb_per_connection": round(grown_mb * 1000 / count, 2),
            "cpu_ms_per_connection": round(opening_cpu * 1000 / count, 3),
            "idle_cpu_percent": round((cpu_seconds(pid) - cpu) / IDLE_S * 100, 2),
        }


async def _ask_all(connections: list[KafkaConnection]) -> None:
    answers = []
    for connection in connections:
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        connection.send(API_VERSIONS, answered.set_result)
        answers.append(answered)
    await asyncio.wait_for(asyncio.gather(*answers), TIMEOUT_S)
