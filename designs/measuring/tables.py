"""A comparison as tables: one row for each measure, one column for each design."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from regent.designs.measuring.claims import check_claims
from regent.designs.measuring.comparison import DesignComparison, DesignResult
from regent.designs.measuring.failure import FailureCase, FailureResult, RestLoad
from regent.designs.measuring.zookeeper_counts import ZooKeeperActivity

T = TypeVar("T")


class MeasureTable(NamedTuple):
    """A table; each row has a cell for each column."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


_FAILURE: Final[dict[str, Callable[[FailureResult], object]]] = {
    "partitions that the dead led": lambda result: result.led_by_dead,
    "ms until led": lambda result: round(result.times.led_ms),
    "ms until known to all": lambda result: round(result.times.known_ms),
    "requests between brokers": lambda result: result.broker_requests,
    "listeners called": lambda result: result.listeners_called,
    "ZooKeeper: read requests": lambda result: result.zookeeper.read_requests,
    "ZooKeeper: znodes read": lambda result: result.zookeeper.znodes_read,
    "ZooKeeper: write requests": lambda result: result.zookeeper.write_requests,
    "ZooKeeper: znodes written": lambda result: result.zookeeper.znodes_written,
    "ZooKeeper: ephemerals deleted": lambda result: result.zookeeper.ephemerals_deleted,
    "ZooKeeper: watches set": lambda result: result.zookeeper.watches_set,
    "ZooKeeper: watches fired": lambda result: result.zookeeper.watches_fired,
    "ZooKeeper: packets": lambda result: result.zookeeper.packets,
    "transactions: log / mntr": lambda result: _both("transactions", result.zookeeper),
    "changed znodes: log / mntr": lambda result: _both("changes", result.zookeeper),
}
GROWING: Final[Mapping[str, Callable[[FailureResult], float]]] = {
    "ms until led": lambda result: round(result.times.led_ms),
    "ms until known to all": lambda result: round(result.times.known_ms),
    "requests to ZooKeeper": lambda result: (
        result.zookeeper.read_requests + result.zookeeper.write_requests
    ),
    "watches fired": lambda result: result.zookeeper.watches_fired,
    "watches at rest": lambda result: result.rest.watches,
}
"""The numbers that are shown for several sizes."""
_REST: Final[dict[str, Callable[[RestLoad], object]]] = {
    "watches": lambda rest: rest.watches,
    "paths with watches on data": lambda rest: rest.watched_paths,
    "sessions": lambda rest: rest.sessions,
    "requests per second": lambda rest: round(rest.requests_per_s, 2),
    "pings per second": lambda rest: round(rest.pings_per_s, 2),
}
_OTHERS: Final[dict[str, Callable[[DesignResult], object]]] = {
    "replicas that say they lead": lambda r: r.believers and r.believers.leaders,
    "acknowledged by the former leader alone": lambda r: (
        r.believers and r.believers.has_acknowledged
    ),
    "one command: ZooKeeper operations": lambda r: (
        None if r.state_change is None else r.state_change.zookeeper_operations
    ),
    "one command: requests": lambda r: r.state_change and r.state_change.requests,
}


def comparison_tables(comparison: DesignComparison) -> Iterator[MeasureTable]:
    """Yield the tables of the measures."""
    results = comparison.designs
    changes = [result.leader_change for result in results.values()]
    failures = [result.failure for result in results.values()]
    of_controllers = [result.controller_failure for result in results.values()]
    columns = ("measure", *results)
    yield _table("One leader dies: a cluster with 1 partition", columns, _FAILURE, changes)
    yield _table(_caption(failures[0].case), columns, _FAILURE, failures)
    if any(of_controllers):
        case = next(found.case for found in of_controllers if found is not None)
        yield _table(_caption(case), columns, _FAILURE, of_controllers)
    yield _table(
        f"ZooKeeper at rest: {comparison.setting.partitions:,} partitions",
        columns,
        _REST,
        [result.rest for result in failures],
    )
    yield _table(
        "A leader that is stopped until another one leads; one change of a state",
        columns,
        _OTHERS,
        results.values(),
    )


def claims_table(comparison: DesignComparison) -> MeasureTable:
    """Return the claims with their numbers."""
    words = {True: "yes", False: "no", None: "not measured"}
    return MeasureTable(
        "What is said of these designs",
        ("claim", "numbers", "borne out"),
        [
            (claim.claim, claim.numbers, words[claim.is_borne_out])
            for claim in check_claims(comparison)
        ],
    )


def growth_table(comparison: DesignComparison) -> MeasureTable:
    """Return how the most telling numbers grow with the partitions, a row for each size."""
    return MeasureTable(
        f"{_brokers(comparison.setting.failures)} in clusters of several sizes",
        ("design", "partitions", *GROWING),
        [
            (name, found.case.partitions, *(number(found) for number in GROWING.values()))
            for name, result in comparison.designs.items()
            for found in result.growth
        ],
    )


def _both(name: str, activity: ZooKeeperActivity) -> str:
    return f"{getattr(activity.by_log, name):,} / {getattr(activity.by_mntr, name):,}"


def _table(
    caption: str,
    columns: Sequence[str],
    measures: Mapping[str, Callable[[T], object]],
    found: Iterable[T | None],
) -> MeasureTable:
    results = list(found)
    return MeasureTable(
        caption,
        columns,
        [
            (name, *(None if result is None else number(result) for result in results))
            for name, number in measures.items()
        ],
    )


def _caption(case: FailureCase) -> str:
    with_controller = ", the controller is one of them" if case.failures > 1 else ", the controller"
    suffix = with_controller if case.includes_controller else ""
    return f"{_brokers(case.failures)}{suffix}: a cluster with {case.partitions:,} partitions"


def _brokers(count: int) -> str:
    return "One broker dies" if count == 1 else f"{count} brokers die at the same moment"
