"""``python -m bench`` lists the benchmarks; ``python -m bench NAME --help`` describes one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Final

from regent.cli.lazy_group import LazyCommand, LazyGroup

BENCHMARKS: Final[Mapping[str, str]] = {
    "failover-load": "a new controller loads up to a million partitions, with stub brokers",
    "create-load": "topics are created in bulk, with stub brokers",
    "crash-load": "a broker that leads a third crashes, with stub brokers",
    "failover": "kill -9 of the controller of a real cluster",
    "crash": "kill -9 of a broker that leads a third, in a real cluster",
    "shutdown": "controlled shutdown of a broker that leads a third, in a real cluster",
    "create": "a client creates topics, on any cluster",
    "delete": "a client deletes topics, on any cluster",
    "idle": "processor time and wakeups of idle brokers, on any cluster",
    "memory": "memory of brokers and of a replica, on any cluster",
    "produce": "throughput of a producer, on any cluster",
    "latency": "acknowledgements at a steady rate, on any cluster",
    "first-record": "the first record of a new topic, on any cluster",
    "consume": "throughput of a consumer, on any cluster",
    "groups": "commits, rebalances and loading of groups, on any cluster",
    "transactions": "transactions: latency and throughput, on any cluster",
    "compaction": "compaction of logs, in this process or by any cluster",
    "data-source": "Spark reads log directories, and writes a batch once",
    "placement": "`regent jobs place`, ten million partitions",
    "planning": "`regent jobs plan`, plans of every kind",
}
TOOLS: Final[Mapping[str, str]] = {
    "compare": "run a choice of benchmarks, and tell what got slower since the baseline",
    "growth": "draw how figures grow with the number of partitions",
}

main = LazyGroup(
    name="bench",
    help="Benchmarks, each prints a table, or JSON with -o json; and tools for their results.",
    commands={
        name: LazyCommand(f"bench.{name.replace('-', '_')}", "main", summary)
        for name, summary in {**BENCHMARKS, **TOOLS}.items()
    },
)

if __name__ == "__main__":
    # The processes and folders of a benchmark end with its `with` blocks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main(sys.argv[1:] or ["--help"], prog_name="python -m bench")
