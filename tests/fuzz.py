"""``python -m tests.fuzz --requests 50000``: what strangers send to a real broker; prints JSON.

Genuine requests of every kind and version are changed at random and sent, while another client
produces. ``problems`` must be empty: no traceback in a log, nobody else kept waiting, no memory
that stays. ``--seed`` repeats a run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import click
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.support.fuzzed_requests import (
    TOPIC,
    Conversation,
    ask,
    ask_versions,
    conversations,
    genuine_requests,
    talk,
)
from tests.support.running_cluster import RunningCluster

CONNECTIONS = 25
REQUESTS_PER_CONNECTION = 2  # on average
MAX_WAIT_S = 2.0
MAX_GROWTH_MB = 64
SETTINGS = "[broker]\nauto_create_topics_enable = false\n"
PRODUCE = 0


class Seen(NamedTuple):
    """What a client saw that did nothing wrong."""

    answers: int
    longest_s: float
    failures: list[str]


def produce_until_told(pipe: Connection, address: tuple[str, int], produce: bytes) -> None:
    """Produce, on a connection a request, in a process of its own; tell what was seen."""
    answers, longest_s, failures = 0, 0.0, []
    while not pipe.poll(0.01):
        began = monotonic()
        try:
            ask(address, produce)
            answers += 1
        except OSError as error:
            failures.append(repr(error))
        longest_s = max(longest_s, monotonic() - began)
    pipe.send(Seen(answers, round(longest_s, 3), failures))


def process_facts(pid: int) -> dict[str, float]:
    """What a process has taken."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    return {
        "resident_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
        "files": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
    }


def fuzz(address: tuple[str, int], requests: int, chosen: int) -> Counter[str]:
    """Send so many requests; return what became of them."""
    outcomes: Counter[str] = Counter()
    genuine = genuine_requests(ask_versions(address))

    while (left := requests - outcomes["requests"]) > 0:

        @seed(chosen)
        @settings(
            database=None,
            deadline=None,
            max_examples=1 + left // (CONNECTIONS * REQUESTS_PER_CONNECTION),
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(conversations(genuine, CONNECTIONS))
        def check(sent: list[Conversation]) -> None:
            outcomes.update(talk(address, sent))

        check()
        chosen += 1
    return outcomes


def problems(result: dict[str, Any], innocent: Seen) -> list[str]:
    """Return what must not be."""
    grown = result["after"]["resident_mb"] - result["before"]["resident_mb"]
    return [
        *(f"an innocent client: {failure}" for failure in innocent.failures[:10]),
        *([f"{result['tracebacks']} tracebacks"] if result["tracebacks"] else []),
        *([f"{grown:.0f} MB more"] if grown > MAX_GROWTH_MB else []),
        *(["waited for too long"] if innocent.longest_s > MAX_WAIT_S else []),
    ]


@click.command()
@click.option("--requests", type=click.IntRange(1), default=50_000, show_default=True)
@click.option("--seed", "chosen", type=int, help="What is sent; by chance when not given.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Kept; temporary when not given.")
def main(requests: int, chosen: int | None, data_dir: Path | None) -> None:
    """Send changed requests to a broker; exit with 1 when it did harm."""
    first = random.randrange(2**32) if chosen is None else chosen
    with ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "fuzz.toml"
        config.write_text(SETTINGS)
        options = ("--brokers", "1", "--no-placement-service", "--config", str(config))
        cluster = stack.enter_context(RunningCluster(folder / "cluster", *options))
        cluster.create_topic(TOPIC, 1, brokers=1)
        host, port = cluster.bootstrap.rsplit(":", 1)
        address = host, int(port)
        genuine = genuine_requests(ask_versions(address))
        produce = next(r for r in genuine if r[:2] == PRODUCE.to_bytes(2, "big"))
        cluster.await_agreement([0], TOPIC)
        pipe, other_end = multiprocessing.Pipe()
        client = multiprocessing.get_context("spawn").Process(
            target=produce_until_told, args=(other_end, address, produce), daemon=True
        )
        client.start()
        result: dict[str, Any] = {"seed": first, "before": process_facts(cluster.pid(0))}
        began = monotonic()
        outcomes = fuzz(address, requests, first)
        result["seconds"] = round(monotonic() - began, 1)
        pipe.send(None)
        innocent: Seen = pipe.recv()
        client.join()
        sleep(1)  # what is held ends when its client has left
        result["after"] = process_facts(cluster.pid(0))
        result["outcomes"] = dict(outcomes)
        result["innocent"] = innocent._asdict()
        logs = [path.read_text(errors="replace") for path in folder.rglob("*broker*.log")]
        result["log_bytes"] = sum(map(len, logs))
        result["tracebacks"] = sum(text.count("Traceback") for text in logs)
        result["problems"] = problems(result, innocent)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["problems"]))


if __name__ == "__main__":
    main()
