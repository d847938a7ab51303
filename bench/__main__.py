"""``python -m bench`` lists the benchmarks; ``python -m bench NAME --help`` describes one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Final

from regent.cli.lazy_group import LazyCommand, LazyGroup

BENCHMARKS: Final[Mapping[str, tuple[str, str]]] = {
    "failover-load": (
        "load",
        "a new controller loads a million partitions, with stub brokers",
    ),
    "create-load": ("load", "topics are created in bulk, with stub brokers"),
    "crash-load": ("load", "a broker that leads a third crashes, with stub brokers"),
    "failover": ("real_cluster", "kill -9 of the controller of a real cluster"),
    "crash": ("real_cluster", "kill -9 of a broker that leads a third, in a real cluster"),
    "shutdown": ("real_cluster", "controlled shutdown of a broker that leads a third"),
    "kafka-controllers": (
        "kafka_controllers",
        "three brokers of Kafka under a controller of Kafka and under ours",
    ),
    "console": (
        "console_pages",
        "pages of the console and a crash, 20,000 partitions, with stub brokers",
    ),
    "create": ("topics", "a client creates topics, on any cluster"),
    "delete": ("topics", "a client deletes topics, on any cluster"),
    "idle": ("rest", "processor time and wakeups of idle brokers, on any cluster"),
    "memory": ("rest", "memory of brokers and of a replica, on any cluster"),
    "produce": ("produce", "throughput of a producer, on any cluster"),
    "tls": ("encryption", "what TLS costs a listener, for each byte and connection"),
    "secured": ("secured", "what securing a whole cluster costs, beside Kafka"),
    "floods": ("floods", "a producer beside floods of strangers and of a stolen key"),
    "latency": ("latency", "acknowledgements at a steady rate, on any cluster"),
    "first-record": ("first_record", "the first record of a new topic, on any cluster"),
    "groups": ("groups", "commits, rebalances and loading of groups, on any cluster"),
    "transactions": ("transactions", "transactions: latency and throughput, on any cluster"),
    "compaction": ("compaction", "compaction of logs, in this process or by any cluster"),
    "placement": ("placing", "`regent jobs place`, ten million partitions"),
    "planning": ("placing", "`regent jobs plan`, plans of every kind"),
}
"""Their names, each that of its function, with its module and what it does."""
TOOLS: Final[Mapping[str, tuple[str, str]]] = {
    "compare": (
        "compare",
        "run some benchmarks, and tell what got slower since the baseline",
    ),
    "growth": ("growth", "draw how figures grow with the number of partitions"),
}

main = LazyGroup(
    name="bench",
    help="Benchmarks, each prints a table, or JSON with -o json; and tools for their results.",
    commands={
        name: LazyCommand(f"bench.{module}", name.replace("-", "_"), summary)
        for name, (module, summary) in {**BENCHMARKS, **TOOLS}.items()
    },
)

if __name__ == "__main__":
    # The processes and folders of a benchmark end with its `with` blocks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main(sys.argv[1:] or ["--help"], prog_name="python -m bench")
