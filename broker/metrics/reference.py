"""``python -m regent.broker.metrics.reference``: write the tables of docs/metrics.md again.

The text between them is written by hand and stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from regent.broker.metrics import broker_metrics as broker
from regent.broker.metrics import controller_metrics as controller
from regent.broker.metrics import coordinator_metrics as coordinator
from regent.broker.metrics import listener_metrics as listener
from regent.broker.metrics import replication_metrics as replication
from regent.broker.metrics.metric_table import Kind, Metric, MetricTable

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
_HEAD: Final = "| name | labels | type | meaning | MBean |\n|---|---|---|---|---|\n"

SECTIONS: Final[Mapping[str, Sequence[MetricTable[Any]]]] = {
    "Requests of clients": (
        *(listener.REQUESTS, listener.ERRORS, listener.TIMES, replication.PURGATORY),
        *(listener.REQUEST_QUEUE, listener.RESPONSE_QUEUE),
    ),
    "Topics": (replication.TOPICS,),
    "Threads and connections": (
        *(listener.SOCKET_SERVER, listener.PROCESSOR, listener.HANDLERS, listener.ACCEPTOR),
        *(listener.CONNECTIONS, listener.SOFTWARE, *listener.PRODUCE_QUOTAS),
        *(*listener.FETCH_QUOTAS, *listener.REQUEST_QUOTAS, listener.PAUSES, listener.CLOSINGS),
        listener.TLS,
        *(broker.CONTROL_REQUESTS, broker.REJECTED, broker.UNAUTHORIZED, broker.OVERDONE),
        *(broker.REFUSED, broker.ACLS),
    ),
    "Replicas and logs": (
        *(replication.PARTITION_COUNTS, replication.ISR_CHANGES, broker.STRAYS),
        *(replication.PARTITIONS, replication.LOGS, broker.FAILED_DIRECTORIES, broker.DIRECTORIES),
        broker.OPEN_FILES,
        *(broker.CLEANER_MANAGER, broker.UNCLEANABLE, broker.CLEANER, replication.LAG),
        *(replication.SLOWEST_FETCHER, replication.DEAD_FETCHERS, replication.FETCHERS),
        *(replication.SESSIONS, replication.FOLLOWERS),
    ),
    "Controller": (
        *(controller.GAUGES, controller.STATE, controller.TIMERS, controller.ELECTIONS),
        *(controller.EVENTS, controller.ALL_QUEUES, controller.QUEUES, controller.CHANNELS),
        *(controller.SENDERS, controller.SOFTWARE, controller.UNANSWERED),
    ),
    "Groups": (
        *(coordinator.STATES, coordinator.POSITIONS, coordinator.GROUPS, coordinator.GROUP_LOADS),
    ),
    "Transactions": (coordinator.TRANSACTION_LOADS, coordinator.MARKERS),
    "The broker and ZooKeeper": (
        *(broker.STATE, broker.DISKS, broker.SESSION_STATE, broker.SESSION),
        *(broker.ZOOKEEPER_REQUESTS, broker.GUARDIAN, broker.PLACEMENTS, broker.ERRORS),
        broker.STUCK,
    ),
}
"""The tables below each heading of the page."""


def metrics_page(page: str) -> str:
    """Return the page with its tables made anew."""
    head, *sections = page.split("\n## ")
    return "\n## ".join([head, *map(_section, sections)])


def _section(section: str) -> str:
    tables = SECTIONS.get(section.partition("\n")[0])
    if tables is None:
        return section
    rows = "".join(row for table in tables for row in _rows(table))
    parts = itertools.groupby(section.splitlines(keepends=True), lambda line: line.startswith("|"))
    return "".join(_HEAD + rows if is_table else "".join(lines) for is_table, lines in parts)


def _rows(table: MetricTable[Any]) -> Iterator[str]:
    for row in table.rows:
        labels = ", ".join([*table.labels, *(["quantile"] if row.kind is Kind.SUMMARY else [])])
        meaning = ". ".join(filter(None, (row.meaning, row.details[:1].upper() + row.details[1:])))
        yield (
            f"| `{table.exposed_name(row)}` | {labels} | {row.kind.value} | {meaning} |"
            f" {_mbean(table, row)} |\n"
        )


def _mbean(table: MetricTable[Any], row: Metric[Any]) -> str:
    if not table.mbean:
        return ""
    if table.mbean.endswith("="):
        return f"`{table.mbean}{row.name.partition('_')[0]}`"
    return f"`{table.mbean}`: `{row.name}`"


if __name__ == "__main__":
    PAGE.write_text(metrics_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
