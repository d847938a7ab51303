"""``regent jobs report leaders``: actual and preferred leaders, and brokers that lead too much.

The imbalance of a broker is Kafka's (``leader.imbalance.per.broker.percentage``): of the partitions
whose first replica it has, the share that it does not lead. Above the threshold, 10 % by default,
the next check of the controller elects the preferred leaders.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click
import numpy as np
from pyspark.sql import DataFrame, SparkSession

from regent.client.wording import how_many, number_range
from regent.core.model import NO_LEADER
from regent.jobs.assignment_source import assignment_frame, check_assignment
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.job_session import JobSession
from regent.jobs.options import number_option
from regent.jobs.reports.balance import ENDS, Shares, ordered, percent, spread
from regent.jobs.reports.balance_verdict import missing_brokers, plan_remedies, start_remedies
from regent.jobs.reports.charts import MOST_BARS, add_numbers, columns
from regent.jobs.reports.inputs import assignment_options, read_inputs
from regent.jobs.reports.output import Report, report_command, report_options
from regent.jobs.reports.page import Page, Table, shown
from regent.jobs.reports.replica_arrays import Counts
from regent.jobs.reports.verdict import (
    CLUSTER,
    NAMED,
    Problem,
    Remedy,
    Verdict,
    command_line,
    far_from,
    several,
    uneven,
)

_NAME: Final = "report leaders"
_NAMED: Final = 10  # leaderless partitions that are named
_UNCLEAN: Final = 3  # leaderless partitions that have a command each

# The broker NULL has the partitions whose leader is unknown, and -1 leads those without a leader.
_PER_BROKER: Final = """
SELECT broker, sum(preferred) AS preferred, sum(not_led) AS not_led, sum(leading) AS leading
FROM (SELECT replicas[0] AS first, leader, count(*) AS n FROM {assignment}
      GROUP BY replicas[0], leader)
LATERAL VIEW stack(2, if(leader IS NULL, NULL, first), n, if(leader = first, 0L, n), 0L,
                      leader, 0L, 0L, n) AS broker, preferred, not_led, leading
GROUP BY broker"""
_LEADERLESS: Final = """
SELECT topic, partition FROM {assignment} WHERE leader = -1
ORDER BY topic, partition LIMIT {limit}"""


@dataclass(frozen=True, slots=True)
class Leaders:
    """Partitions of the brokers, in arrays by position, without those whose leader is unknown.

    ``preferred``: how many have their first replica there. ``not_led``: how many of these the
    broker does not lead. ``leading``: how many it leads. ``leaderless`` have no leader.
    """

    broker_ids: Counts
    preferred: Counts
    not_led: Counts
    leading: Counts
    leaderless: int
    unknown: int

    @property
    def known(self) -> int:
        """The number of partitions with a known leader, or with none."""
        return int(self.preferred.sum())

    @property
    def imbalance(self) -> float:
        """Kafka's ratio, of all brokers together."""
        return int(self.not_led.sum()) / max(self.known, 1)

    @property
    def imbalances(self) -> Shares:
        """Kafka's ratio of each broker: 0 without preferred partitions."""
        ratios: Shares = self.not_led / self.preferred.clip(1)
        return ratios

    @property
    def of_fair_share(self) -> Shares:
        """How many partitions brokers lead by the average."""
        shares: Shares = self.leading / (self.leading.mean() or 1.0)
        return shares

    def above(self, threshold: float) -> list[int]:
        """Return the positions of brokers above an imbalance in percent, the worst first."""
        order = np.argsort(-self.imbalances, kind="stable")
        found: list[int] = order[self.imbalances[order] > threshold / 100].tolist()
        return found


@assignment_options
@number_option(
    "--threshold",
    kind=click.FloatRange(0, 100),
    default=10.0,
    text="Imbalance in percent above which a broker is named.",
)
@report_options
def _report(job: JobSession, options: Mapping[str, Any]) -> Report:
    source, brokers = read_inputs(options, job.files)
    listed = [b.broker_id for b in brokers]
    session = job.start()
    with progress("reading the assignment", session):
        frame = assignment_frame(session, source)
        check_assignment(frame, source)
        found = leaders(session, frame, listed)
        names = _leaderless(session, frame) if found.leaderless else []
    if not found.known:
        raise InputError(
            f"{source.where} names no leaders: use zookeeper, or a file with a leader for"
            " each partition"
        )
    missing = sorted({*found.broker_ids.tolist()} - {*listed}) if listed else []
    facts = _facts(found, options["threshold"])
    all_brokers = _all_brokers(found)
    tables = _tables(found, all_brokers, names)
    return Report(
        "Leaders of partitions",
        leaders_verdict(found, names, missing, options),
        facts,
        _summary(found, names, options["threshold"]) | {"not_listed": missing},
        [Table("Leaders", [*facts], [[*facts.values()]]), *tables],
        partial(
            _draw,
            found=found,
            where=source.where,
            tables=tables,
            all_brokers=all_brokers,
            threshold=options["threshold"],
        ),
    )


def leaders(spark: SparkSession, frame: DataFrame, listed: Sequence[int]) -> Leaders:
    """Count the partitions of brokers; ``listed`` ones may have none."""
    rows = spark.sql(_PER_BROKER, assignment=frame).toArrow().to_pylist()
    counts = {row.pop("broker"): tuple(row.values()) for row in rows}
    nothing = (0, 0, 0)
    unknown, _, _ = counts.pop(None, nothing)
    _, _, leaderless = counts.pop(NO_LEADER, nothing)
    ids = sorted({*counts, *listed})
    found = np.array([(broker, *counts.get(broker, nothing)) for broker in ids], np.int64)
    broker_ids, preferred, not_led, leading = found.reshape(-1, 4).T
    return Leaders(broker_ids, preferred, not_led, leading, leaderless, unknown)


def _leaderless(spark: SparkSession, frame: DataFrame) -> list[str]:
    rows = spark.sql(_LEADERLESS, assignment=frame, limit=_NAMED).toArrow().to_pylist()
    return [f"{row['topic']}-{row['partition']}" for row in rows]


# --- verdict --------------------------------------------------------------------------------------


def leaders_verdict(
    found: Leaders, leaderless: Sequence[str], missing: Sequence[int], options: Mapping[str, Any]
) -> Verdict:
    """Judge the leaders; ``missing`` brokers are not listed, ``leaderless`` are some partitions."""

    def remedy(purpose: str, words: str) -> Remedy:
        return Remedy(purpose, command_line(words, options, *CLUSTER))

    start = start_remedies("To start them", missing, options) if missing else []
    unled = [
        remedy(
            "To list the partitions without a leader, with the brokers that have their replicas",
            "topics describe --unavailable-partitions",
        ),
        *start,
        *_unclean_elections(leaderless, found.leaderless, options),
    ]
    give_back = remedy(
        "To let preferred leaders lead again",
        "elect-leaders --election-type preferred --all-topic-partitions",
    )
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
        *_uneven(found, even_out, give_back),
    ]
    leading = found.leading
    fine = (
        f"All {how_many(found.known + found.unknown, 'partition', 'partitions')} have leaders, and"
        f" each of the {len(leading):,} brokers leads about as many as it should:"
        f" {number_range(int(leading.min()), int(leading.max()))}."
    )
    return Verdict(problems, fine)


def _unclean_elections(
    leaderless: Sequence[str], total: int, options: Mapping[str, Any]
) -> list[Remedy]:
    """Return commands that elect out-of-sync leaders of these partitions only, if need be."""

    def remedy(which: str, words: str) -> Remedy:
        purpose = (
            "Last resort, only if the brokers that stopped never return: RECORDS MAY BE LOST for"
            f" good, because any live replica becomes the leader of {which}"
        )
        line = command_line(f"elect-leaders --election-type unclean {words}", options, *CLUSTER)
        return Remedy(purpose, line, may_lose_records=True)

    parts = [name.rpartition("-") for name in leaderless]
    if total > _UNCLEAN:
        topic, _, partition = parts[0]
        entry = f'{{"topic": "{topic}", "partition": {partition}}}'
        which = f'those that you list in partitions.json, such as {{"partitions": [{entry}]}}'
        return [remedy(which, "--path-to-json-file partitions.json")]
    return [
        remedy(f"{topic}-{partition}", f"--topic {topic} --partition {partition}")
        for topic, _, partition in parts
    ]


def _not_led(found: Leaders, percentage: float, remedy: Remedy) -> list[Problem]:
    above = found.above(percentage)
    ids, preferred, led = found.broker_ids, found.preferred, found.preferred - found.not_led
    who = "it is" if len(above) == 1 else "they are"
    return several(
        [f"broker {ids[b]} leads {led[b]:,} of {preferred[b]:,}" for b in above],
        "broker leads",
        "brokers lead",
        f"fewer than {100 - percentage:g} % of the partitions whose preferred leader {who}",
        [remedy],
    )


def _uneven(found: Leaders, even_out: Sequence[Remedy], give_back: Remedy) -> list[Problem]:
    leading, preferred = found.leading, found.preferred
    mean = leading.mean()
    sides = zip(far_from(leading, mean), far_from(preferred, preferred.mean()), strict=True)
    remain = sum(len({*now} & {*then}) for now, then in sides)
    share = f"the average of {shown(float(mean))} partitions"
    more = (
        f" Even if each partition were led by its preferred leader, {remain:,} of these brokers"
        " would lead too many or too few."
    )
    return uneven(
        *(found.broker_ids, leading, mean, ("leads", "lead"), share),
        even_out if remain else [give_back],
        more=more * bool(remain),
    )


# --- output ---------------------------------------------------------------------------------------


def _summary(found: Leaders, names: Sequence[str], threshold: float) -> dict[str, Any]:
    ids = found.broker_ids.tolist()
    high, low = far_from(found.leading, found.leading.mean())
    per_broker = {
        "broker": ids,
        "preferred": found.preferred.tolist(),
        "not_led": found.not_led.tolist(),
        "imbalance": found.imbalances.tolist(),
        "leading": found.leading.tolist(),
        "of_fair_share": found.of_fair_share.tolist(),
    }
    return {
        "partitions": found.known + found.unknown,
        "brokers": len(ids),
        "leaderless": found.leaderless,
        "leaderless_partitions": names,
        "unknown": found.unknown,
        "imbalance": found.imbalance,
        "worst_imbalance": float(found.imbalances.max()),
        "threshold": threshold / 100,
        "above_threshold": len(found.above(threshold)),
        "leaders": spread(found.leading),
        "overloaded": [ids[b] for b in high],
        "underloaded": [ids[b] for b in low],
        "per_broker": Table.of("Brokers", per_broker).fields(),
    }


def _facts(found: Leaders, threshold: float) -> dict[str, object]:
    above = len(found.above(threshold))
    return {
        "partitions": found.known + found.unknown,
        "led by another": int(found.not_led.sum()),
        "imbalance": percent(found.imbalance),
        "leaderless": found.leaderless,
        f"brokers above {threshold:g} %": f"{above:,} of {len(found.broker_ids):,}",
    }


def _tables(found: Leaders, all_brokers: Table, names: Sequence[str]) -> list[Table]:
    worst, falling, rising = (
        np.argsort(keys, kind="stable").tolist()
        for keys in (-found.imbalances, -found.leading, found.leading)
    )
    ends = {
        f"The {ENDS} brokers with the highest imbalance": worst,
        f"The {ENDS} brokers that lead the most": falling,
        f"The {ENDS} brokers that lead the fewest": rising,
    }
    tables = ordered(all_brokers, "Brokers, the highest imbalance first", ends)
    if names:
        more = found.leaderless - len(names)
        title = f"Without a leader{f' (and {more:,} more)' if more else ''}"
        tables.append(Table(title, ("partition",), [(name,) for name in names]))
    return tables


def _all_brokers(found: Leaders) -> Table:
    columns: dict[str, Sequence[object]] = {
        "broker": [*map(str, found.broker_ids.tolist())],
        "preferred leader of": found.preferred.tolist(),
        "leads of these": (found.preferred - found.not_led).tolist(),
        "imbalance": [*map(percent, found.imbalances.tolist())],
        "leads in all": found.leading.tolist(),
        "of the average": [*map(percent, found.of_fair_share.tolist())],
    }
    return Table.of(f"All {len(found.broker_ids):,} brokers", columns)


def _draw(
    page: Page,
    found: Leaders,
    where: str,
    tables: Sequence[Table],
    all_brokers: Table,
    threshold: float,
) -> None:
    page.text(f"Read from {where}.")
    ids, leading = found.broker_ids, found.leading
    if len(ids) <= MOST_BARS:
        series = {"leads": leading.tolist(), "is preferred leader of": found.preferred.tolist()}
        page.figure(
            columns([*map(str, ids.tolist())], series, "partitions", of="broker id"),
            "Partitions that a broker leads, and partitions whose preferred leader it is because it"
            " has their first replica.",
        )
    else:
        fair = np.full(len(ids), leading.mean())
        add_numbers(
            page, ids, leading, "partitions", "Partitions that each broker leads", fair=fair
        )
        worst = found.above(threshold)[:NAMED]
        add_numbers(
            page,
            ids,
            100 * found.imbalances,
            "%",
            "Imbalance of each broker in percent: of the partitions whose preferred leader it is,"
            f" the share that others lead{'. Orange: the highest' if worst else ''}",
            marked=worst,
        )
    for table in tables:
        page.table(table)
    page.all_brokers(all_brokers)


_command: Final = report_command(
    _NAME, "Report the actual and the preferred leaders of partitions.", _report
)
main: Final = partial(run_job, _command, _NAME)
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
