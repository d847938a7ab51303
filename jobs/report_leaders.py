"""``regent jobs report leaders``: actual and preferred leaders, and brokers that lead too much.

The imbalance of a broker is Kafka's (``leader.imbalance.per.broker.percentage``): of the partitions
whose first replica it has, the share that it does not lead. Above the threshold, 10 % by default,
the next check of the controller elects the preferred leaders.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
import pyarrow
import pyarrow.compute
from pyspark.sql import DataFrame, SparkSession

from regent.jobs.assignment_source import ZOOKEEPER, assignment_frame, check_assignment
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.job_session import job_session, spark_options
from regent.jobs.reports.balance import percent, spread_fields
from regent.jobs.reports.balance_verdict import missing_brokers, plan_remedies
from regent.jobs.reports.inputs import assignment_options, read_inputs
from regent.jobs.reports.output import print_report, report_options
from regent.jobs.reports.page import Table
from regent.jobs.reports.replica_arrays import Counts, positions
from regent.jobs.reports.verdict import (
    CLUSTER,
    OVERLOAD,
    Remedy,
    Verdict,
    command_line,
    counted,
    listed,
    number_range,
)

_NAMED: Final = 10  # leaderless partitions and missing brokers that are named
_ROWS: Final = 40  # brokers in a table; programs get all

_WHO_LEADS: Final = """
SELECT replicas[0] AS preferred, leader, count(*) AS partitions
FROM {assignment} GROUP BY replicas[0], leader"""
_LEADERLESS: Final = """
SELECT topic, partition FROM {assignment} WHERE leader = -1
ORDER BY topic, partition LIMIT {limit}"""


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
        order = np.argsort(-self.leading, kind="stable")
        found: list[int] = order[self.leading[order] > OVERLOAD * self.leading.mean()].tolist()
        return found


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the command in ``spark``, or in a new session; return the exit status."""
    return run_job(_command, "report leaders", argv, spark)


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
    started = time.monotonic()
    html = options["html"]
    with job_session(spark, options, app_name="regent-report-leaders") as job:
        source, brokers = read_inputs(options, job.files)
        session = job.start()
        with progress("reading the assignment", session):
            frame = assignment_frame(session, source)
            check_assignment(frame, source.where)
            found = leaders(_count(session, frame), [b.broker_id for b in brokers])
            names = _leaderless(session, frame) if found.leaderless else []
        if not found.leading.any() and not found.leaderless:
            raise InputError(
                f"{source.where} names no leaders: use zookeeper, or a file with a leader for"
                " each partition"
            )
        missing = _missing(found, {b.broker_id for b in brokers})
        verdict = leaders_verdict(found, names, missing, options)
        result = _summary(found, names, options["threshold"])
        result |= {"not_listed": missing}
        tables = _tables(found, names, options["threshold"])
        if html is not None:
            with job.files.writing(html) as path:
                _write_page(found, verdict, source.where, tables, path)
    result |= {"html": html}
    result |= {"seconds": round(time.monotonic() - started, 3)}
    print_report(options["output"], result, tables, verdict)


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


def _missing(found: Leaders, listed: set[int]) -> list[int]:
    """Return the brokers with partitions that are not listed, or nothing if none is listed."""
    return [b for b in found.broker_ids.tolist() if b not in listed] if listed else []


# --- verdict --------------------------------------------------------------------------------------


def leaders_verdict(
    found: Leaders, leaderless: Sequence[str], missing: Sequence[int], options: Mapping[str, Any]
) -> Verdict:
    """Judge the leaders; ``missing`` brokers are not listed, ``leaderless`` are some partitions."""
    problems, remedies = [], []

    def remedy(purpose: str, words: str) -> None:
        remedies.append(Remedy(purpose, command_line(words, options, *CLUSTER)))

    if found.leaderless:
        has = counted(found.leaderless, "partition has", "partitions have")
        problems.append(
            f"{has} no leader and can be neither written nor read"
            f" ({listed(leaderless, found.leaderless)})."
        )
        words = "topics describe --unavailable-partitions"
        remedy("To see which brokers they wait for", words)
    if missing:
        problems.append(f"{missing_brokers(missing, options)} and cannot lead.")
        if options["assignment"] == ZOOKEEPER and not options["zookeeper"]:
            remedy("To start them", f"brokers start {' '.join(map(str, missing[:_NAMED]))}")
    not_led, uneven = _not_led(found, options["threshold"]), _uneven(found)
    problems += not_led + uneven
    too_many_preferred = _too_many_preferred(found)
    if not_led or (uneven and not too_many_preferred):
        words = "elect-leaders --election-type preferred --all-topic-partitions"
        remedy("To let preferred leaders lead again", words)
    if too_many_preferred:
        purpose = "To make preferred leaders even too (it also evens out replicas)"
        remedies += plan_remedies(purpose, "rebalance", options)
    if found.leaderless:
        words = "elect-leaders --election-type unclean --all-topic-partitions"
        remedy("Only if brokers that are awaited never return (this loses records)", words)
    fine = (
        f"All {counted(_partitions(found), 'partition', 'partitions')} have leaders, and each of"
        f" the {len(found.broker_ids):,} brokers leads about as many as it should:"
        f" {number_range(int(found.leading.min()), int(found.leading.max()))}."
    )
    return Verdict(problems, fine, remedies)


def _not_led(found: Leaders, percentage: float) -> list[str]:
    order = np.argsort(-found.imbalance, kind="stable").tolist()
    above = [b for b in order if found.imbalance[b] > percentage / 100]
    names = [
        f"broker {found.broker_ids[b]}: {found.not_led[b]:,} of {found.preferred[b]:,}"
        for b in above
    ]
    fail = counted(len(above), "broker does", "brokers do")
    return [
        f"{fail} not lead more than {percentage:g} % of the partitions that prefer them"
        f" ({listed(names)})."
    ] * bool(above)


def _uneven(found: Leaders) -> list[str]:
    over = found.too_many
    names = [f"broker {found.broker_ids[b]}: {found.leading[b]:,}" for b in over]
    lead = counted(len(over), "broker leads", "brokers lead")
    remain = _too_many_preferred(found)
    preferred = f"; {remain:,} would even if only preferred leaders led" if remain else ""
    return [
        f"{lead} more than {OVERLOAD} times the average of {found.leading.mean():,.4g} partitions"
        f" ({listed(names)}){preferred}."
    ] * bool(over)


def _too_many_preferred(found: Leaders) -> int:
    most = OVERLOAD * float(found.preferred.mean())
    return sum(bool(found.preferred[b] > most) for b in found.too_many)


# --- output ---------------------------------------------------------------------------------------


def _summary(found: Leaders, names: list[str], threshold: float) -> dict[str, Any]:
    fields = ("broker", "preferred", "not_led", "imbalance", "leading", "of_fair_share")
    return {
        "job": "report leaders",
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


def _rows(found: Leaders) -> list[tuple[int, int, int, float, int, float]]:
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
    worst = sorted(_rows(found), key=lambda row: (-max(row[3], abs(row[5] - 1)), row[0]))[:_ROWS]
    shown = [
        (broker, preferred, not_led, percent(imbalance), leading, percent(share))
        for broker, preferred, not_led, imbalance, leading, share in worst
    ]
    first = f" (the first {_ROWS})" if len(found.broker_ids) > _ROWS else ""
    per_broker = Table(
        f"Brokers, the most uneven first{first}; imbalance: the share of what a broker should lead"
        " that it does not",
        ("broker", "should lead", "of these does not", "imbalance", "leads", "of fair share"),
        [(str(broker), *row) for broker, *row in shown],
    )
    if not names:
        return [overview, per_broker]
    more = found.leaderless - len(names)
    title = f"Without a leader{f' (and {more:,} more)' if more else ''}"
    return [overview, per_broker, Table(title, ("partition",), [(name,) for name in names])]


def _write_page(
    found: Leaders, verdict: Verdict, where: str, tables: list[Table], path: Path
) -> None:
    from regent.jobs.reports.charts import MOST_BARS, NEAR, columns, over_brokers
    from regent.jobs.reports.page import Page

    page = Page("Leaders of partitions")
    page.verdict(verdict)
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
    page.write(path)


if __name__ == "__main__":
    sys.exit(main())
