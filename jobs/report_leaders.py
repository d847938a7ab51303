"""``regent jobs report leaders``: actual and preferred leaders, and brokers that lead too much.

The imbalance of a broker is Kafka's (``leader.imbalance.per.broker.percentage``): of the partitions
whose first replica it has, the share that it does not lead. Above the threshold, 10 % by default,
the next check of the controller elects the preferred leaders.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import click
import numpy as np
import pyarrow
import pyarrow.compute
from pyspark.sql import DataFrame, SparkSession

from regent.admin.wording import how_many, number_range
from regent.jobs.assignment_source import assignment_frame, check_assignment
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.job_session import JobSession, spark_options
from regent.jobs.reports.balance import percent, spread_fields
from regent.jobs.reports.balance_verdict import (
    beyond,
    missing_brokers,
    plan_remedies,
    start_remedies,
)
from regent.jobs.reports.charts import MOST_BARS, NEAR, columns, over_brokers
from regent.jobs.reports.inputs import assignment_options, read_inputs
from regent.jobs.reports.output import Report, report_options, run_report
from regent.jobs.reports.page import Page, Table
from regent.jobs.reports.replica_arrays import Counts, positions
from regent.jobs.reports.verdict import (
    CLUSTER,
    OVERLOAD,
    Problem,
    Remedy,
    Verdict,
    command_line,
    several,
)

_NAME: Final = "report leaders"
_NAMED: Final = 10  # leaderless partitions that are named
_ROWS: Final = 20  # brokers in a table; programs get all

_WHO_LEADS: Final = """
SELECT replicas[0] AS preferred, leader, count(*) AS partitions
FROM {assignment} GROUP BY replicas[0], leader"""
_LEADERLESS: Final = """
SELECT topic, partition FROM {assignment} WHERE leader = -1
ORDER BY topic, partition LIMIT {limit}"""


_Row = tuple[int, int, int, float, int, float]


class Leaders(NamedTuple):
    """Partitions of each broker, by its position in ``broker_ids``.

    ``preferred``: the broker has the first replica. ``not_led``: it has the first replica and does
    not lead. Partitions with an unknown leader are in neither. ``leading``: it is the leader.
    """

    broker_ids: Counts
    preferred: Counts
    not_led: Counts
    leading: Counts
    leaderless: int
    unknown: int

    @property
    def imbalance(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Kafka's leader imbalance ratio; 0 for a broker without preferred partitions."""
        return self.not_led / np.maximum(self.preferred, 1)

    @property
    def too_many(self) -> list[int]:
        """The brokers that lead far more than the average, by position, the worst first."""
        return beyond(self.leading / (self.leading.mean() or 1.0))

    @property
    def too_many_preferred(self) -> int:
        """How many of them would lead too many even if only preferred leaders led."""
        most = OVERLOAD * float(self.preferred.mean())
        return int((self.preferred[self.too_many] > most).sum())


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the command in ``spark``, or in a new session; return the exit status."""
    return run_job(_command, _NAME, argv, spark)


@click.command("leaders", help="Report the actual and the preferred leaders of partitions.")
@assignment_options
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    help="Imbalance in percent above which a broker is named.",
)
@report_options
@spark_options
@click.pass_obj
def _command(spark: SparkSession | None, /, **options: Any) -> None:
    run_report(spark, options, _NAME, _report)


def _report(job: JobSession, options: Mapping[str, Any]) -> Report:
    source, brokers = read_inputs(options, job.files)
    listed = [b.broker_id for b in brokers]
    session = job.start()
    with progress("reading the assignment", session):
        frame = assignment_frame(session, source)
        check_assignment(frame, source.where)
        found = leaders(_count(session, frame), listed)
        names = _leaderless(session, frame) if found.leaderless else []
    if not found.leading.any() and not found.leaderless:
        raise InputError(
            f"{source.where} names no leaders: use zookeeper, or a file with a leader for"
            " each partition"
        )
    missing = [b for b in found.broker_ids.tolist() if b not in listed] if listed else []
    tables = _tables(found, names, options["threshold"])
    return Report(
        "Leaders of partitions",
        _summary(found, names, options["threshold"]) | {"not_listed": missing},
        leaders_verdict(found, names, missing, options),
        tables,
        partial(_draw, found=found, where=source.where, tables=tables),
    )


def _count(spark: SparkSession, frame: DataFrame) -> pyarrow.Table:
    return spark.sql(_WHO_LEADS, assignment=frame).toArrow()


def _leaderless(spark: SparkSession, frame: DataFrame) -> list[str]:
    rows = spark.sql(_LEADERLESS, assignment=frame, limit=_NAMED).toArrow().to_pylist()
    return [f"{row['topic']}-{row['partition']}" for row in rows]


def leaders(who_leads: pyarrow.Table, broker_ids: Sequence[int]) -> Leaders:
    """Sum up rows of (preferred, leader, partitions); brokers without rows get zeros."""
    known = who_leads.filter(pyarrow.compute.is_valid(who_leads["leader"]))
    unknown = pyarrow.compute.sum(who_leads["partitions"]).as_py() or 0
    preferred, leader, partitions = (
        known[name].to_numpy() for name in ("preferred", "leader", "partitions")
    )
    unknown -= int(partitions.sum())
    ids = np.unique(np.concatenate([preferred, leader[leader >= 0], np.array(broker_ids, int)]))
    ids = ids.astype(np.int64)
    is_led = leader >= 0
    n = len(ids)

    def count(brokers: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> Counts:
        total = np.zeros(n, np.int64)
        np.add.at(total, positions(ids, brokers), weights)
        return total

    return Leaders(
        ids,
        preferred=count(preferred, partitions),
        not_led=count(preferred, np.where(preferred == leader, 0, partitions)),
        leading=count(leader[is_led], partitions[is_led]),
        leaderless=int(partitions[~is_led].sum()),
        unknown=unknown,
    )


# --- verdict --------------------------------------------------------------------------------------


def leaders_verdict(
    found: Leaders, leaderless: Sequence[str], missing: Sequence[int], options: Mapping[str, Any]
) -> Verdict:
    """Judge the leaders; ``missing`` brokers are not listed, ``leaderless`` are some partitions."""

    def remedy(purpose: str, words: str) -> Remedy:
        return Remedy(purpose, command_line(words, options, *CLUSTER))

    start = start_remedies("To start them", missing, options) if missing else []
    elect = "elect-leaders --all-topic-partitions --election-type"
    unled = [
        remedy("To see which brokers they wait for", "topics describe --unavailable-partitions"),
        *start,
        remedy(
            "Only if brokers that are awaited never return (this loses records)", f"{elect} unclean"
        ),
    ]
    give_back = remedy("To let preferred leaders lead again", f"{elect} preferred")
    even_out = plan_remedies(
        "To make preferred leaders even too (it also evens out replicas)", "rebalance", options
    )
    problems = [
        *several(
            leaderless,
            "partition has",
            "partitions have",
            "no leader and can be neither written nor read",
            unled,
            total=found.leaderless,
        ),
        *[Problem(f"{missing_brokers(missing, options)} and cannot lead.", start)] * bool(missing),
        *_not_led(found, options["threshold"], give_back),
        *_uneven(found, even_out if found.too_many_preferred else [give_back]),
    ]
    fine = (
        f"All {how_many(_partitions(found), 'partition', 'partitions')} have leaders, and each of"
        f" the {len(found.broker_ids):,} brokers leads about as many as it should:"
        f" {number_range(int(found.leading.min()), int(found.leading.max()))}."
    )
    return Verdict(problems, fine)


def _not_led(found: Leaders, percentage: float, remedy: Remedy) -> list[Problem]:
    order = np.argsort(-found.imbalance, kind="stable").tolist()
    return several(
        [
            f"broker {found.broker_ids[b]}: {found.not_led[b]:,} of {found.preferred[b]:,}"
            for b in order
            if found.imbalance[b] > percentage / 100
        ],
        "broker does",
        "brokers do",
        f"not lead more than {percentage:g} % of the partitions that prefer them",
        [remedy],
    )


def _uneven(found: Leaders, remedies: Sequence[Remedy]) -> list[Problem]:
    remain = found.too_many_preferred
    preferred = f" {remain:,} would even if only preferred leaders led." if remain else ""
    problems = several(
        [f"broker {found.broker_ids[b]}: {found.leading[b]:,}" for b in found.too_many],
        "broker leads",
        "brokers lead",
        f"more than {OVERLOAD} times the average of {found.leading.mean():,.4g} partitions",
        remedies,
    )
    return [problem._replace(sentence=problem.sentence + preferred) for problem in problems]


# --- output ---------------------------------------------------------------------------------------


def _summary(found: Leaders, names: list[str], threshold: float) -> dict[str, Any]:
    fields = ("broker", "preferred", "not_led", "imbalance", "leading", "of_fair_share")
    return {
        "partitions": _partitions(found),
        "brokers": len(found.broker_ids),
        "leaderless": found.leaderless,
        "leaderless_partitions": names,
        "unknown": found.unknown,
        "imbalance": _overall(found),
        "worst_imbalance": float(found.imbalance.max()),
        "threshold": threshold / 100,
        "above_threshold": int((found.imbalance > threshold / 100).sum()),
        "leaders": spread_fields(found.leading),
        "overloaded": [int(found.broker_ids[b]) for b in found.too_many],
        "per_broker": [dict(zip(fields, row, strict=True)) for row in _rows(found)],
    }


def _partitions(found: Leaders) -> int:
    return int(found.preferred.sum()) + found.unknown


def _overall(found: Leaders) -> float:
    return float(found.not_led.sum() / max(int(found.preferred.sum()), 1))


def _rows(found: Leaders) -> list[_Row]:
    fair = max(float(found.leading.mean()), 1e-9)
    columns = (
        found.broker_ids,
        found.preferred,
        found.not_led,
        found.imbalance,
        found.leading,
        found.leading / fair,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _tables(found: Leaders, names: list[str], threshold: float) -> list[Table]:
    above = int((found.imbalance > threshold / 100).sum())
    overview = Table(
        "Leaders",
        (
            "partitions",
            "led by another",
            "imbalance",
            "leaderless",
            f"above {threshold:g} % imbalance",
        ),
        [
            (
                _partitions(found),
                int(found.not_led.sum()),
                percent(_overall(found)),
                found.leaderless,
                f"{above:,} of {len(found.broker_ids):,} brokers",
            )
        ],
    )
    rows = _rows(found)
    worst = sorted(rows, key=lambda row: (-max(row[3], abs(row[5] - 1)), row[0]))[:_ROWS]
    first = f" (the first {_ROWS})" if len(rows) > _ROWS else ""
    per_broker = _broker_table(
        f"Brokers, the most uneven first{first}; imbalance: the share of what a broker should lead"
        " that it does not",
        worst,
    )
    if not names:
        return [overview, per_broker]
    more = found.leaderless - len(names)
    title = f"Without a leader{f' (and {more:,} more)' if more else ''}"
    return [overview, per_broker, Table(title, ("partition",), [(name,) for name in names])]


def _broker_table(caption: str, rows: Sequence[_Row]) -> Table:
    return Table(
        caption,
        ("broker", "should lead", "of these does not", "imbalance", "leads", "of fair share"),
        [
            (str(broker), preferred, not_led, percent(imbalance), leading, percent(share))
            for broker, preferred, not_led, imbalance, leading, share in rows
        ],
    )


def _draw(page: Page, found: Leaders, where: str, tables: Sequence[Table]) -> None:
    page.text(f"Read from {where}.")
    overview, *others = tables
    page.facts(
        [(name.capitalize(), n) for name, n in zip(overview.headers, overview.rows[0], strict=True)]
    )
    ids, leading, preferred = found.broker_ids, found.leading, found.preferred
    if len(ids) <= MOST_BARS:
        series = {"leads": leading.tolist(), "should lead": preferred.tolist()}
        page.figure(
            columns([*map(str, ids.tolist())], series, "partitions", of="broker id"),
            "Partitions that a broker leads, and that it should lead because it has their first"
            " replica (it is their preferred leader).",
        )
    else:
        page.figure(
            over_brokers(ids, leading, "partitions", np.full(len(ids), leading.mean())),
            f"Partitions that a broker leads. {NEAR} the average.",
        )
        page.figure(
            over_brokers(ids, leading - preferred, "partitions"),
            "Partitions that a broker leads, less those that it should lead because it has their"
            " first replica. Above 0 it leads more than it should, below 0 less.",
        )
    for table in others:
        page.table(table)
    page.all_brokers(_broker_table(f"All {len(ids):,} brokers", _rows(found)))


if __name__ == "__main__":
    sys.exit(main())
