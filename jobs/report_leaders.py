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
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from regent.admin.wording import how_many, number_range
from regent.core.model import NO_LEADER
from regent.jobs.assignment_source import assignment_frame, check_assignment
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.job_session import JobSession
from regent.jobs.reports.balance import percent, spread
from regent.jobs.reports.balance_page import add_numbers, add_shares
from regent.jobs.reports.balance_verdict import (
    missing_brokers,
    plan_remedies,
    start_remedies,
)
from regent.jobs.reports.charts import MOST_BARS, columns
from regent.jobs.reports.inputs import assignment_options, read_inputs
from regent.jobs.reports.output import Report, report_command, report_options
from regent.jobs.reports.page import Page, Table, shown
from regent.jobs.reports.verdict import (
    CLUSTER,
    NAMED,
    Problem,
    Remedy,
    Verdict,
    command_line,
    far_brokers,
    far_from,
    named,
    several,
)

_NAME: Final = "report leaders"
_NAMED: Final = 10  # leaderless partitions that are named
_UNCLEAN: Final = 3  # leaderless partitions that have a command each
_ROWS: Final = 10  # brokers in a table, if there are many; programs get all

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


class BrokerLeaders(NamedTuple):
    """Partitions of a broker, without those whose leader is unknown.

    ``preferred``: it has the first replica. ``not_led``: it has the first replica and does not
    lead. ``imbalance`` is Kafka's ratio of the two, 0 without preferred partitions. ``leading``: it
    is the leader, ``of_fair_share`` by the average of all brokers.
    """

    broker: int
    preferred: int
    not_led: int
    imbalance: float
    leading: int
    of_fair_share: float


class Leaders(NamedTuple):
    """The brokers by their ids, and the partitions without a leader or with an unknown one."""

    brokers: Sequence[BrokerLeaders]
    leaderless: int
    unknown: int

    @property
    def partitions(self) -> int:
        """The number of all partitions."""
        return sum(row.preferred for row in self.brokers) + self.unknown

    @property
    def not_led(self) -> int:
        """The number of partitions that their preferred leader does not lead."""
        return sum(row.not_led for row in self.brokers)

    @property
    def imbalance(self) -> float:
        """Kafka's ratio, of all brokers together."""
        return self.not_led / max(self.partitions - self.unknown, 1)

    def above(self, threshold: float) -> list[BrokerLeaders]:
        """Return the brokers above an imbalance in percent, the worst first."""
        found = [row for row in self.brokers if row.imbalance > threshold / 100]
        return sorted(found, key=lambda row: -row.imbalance)

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of the brokers."""
        return np.array([getattr(row, name) for row in self.brokers])

    @property
    def uneven(self) -> tuple[list[int], list[int]]:
        """Where brokers lead far more and far less than the average, the farthest first."""
        leading = self.column("leading")
        return far_from(leading, leading.mean())


@assignment_options
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    help="Imbalance in percent above which a broker is named.",
)
@report_options
def _report(job: JobSession, options: Mapping[str, Any]) -> Report:
    source, brokers = read_inputs(options, job.files)
    listed = [b.broker_id for b in brokers]
    session = job.start()
    with progress("reading the assignment", session):
        frame = assignment_frame(session, source)
        check_assignment(frame, source.where)
        found = leaders(session, frame, listed)
        names = _leaderless(session, frame) if found.leaderless else []
    if found.partitions == found.unknown:
        raise InputError(
            f"{source.where} names no leaders: use zookeeper, or a file with a leader for"
            " each partition"
        )
    missing = [row.broker for row in found.brokers if row.broker not in listed] if listed else []
    facts = _facts(found, options["threshold"])
    tables = _tables(found, names)
    return Report(
        "Leaders of partitions",
        leaders_verdict(found, names, missing, options),
        facts,
        _summary(found, names, options["threshold"]) | {"not_listed": missing},
        [Table("Leaders", tuple(facts), [tuple(facts.values())]), *tables],
        partial(
            _draw, found=found, where=source.where, tables=tables, threshold=options["threshold"]
        ),
    )


def leaders(spark: SparkSession, frame: DataFrame, broker_ids: Sequence[int]) -> Leaders:
    """Count the partitions of brokers; those of ``broker_ids`` may have none."""
    table = spark.sql(_PER_BROKER, assignment=frame).toArrow()
    counts: dict[int | None, tuple[int, int, int]] = {
        row["broker"]: (row["preferred"], row["not_led"], row["leading"])
        for row in table.to_pylist()
    }
    nothing = (0, 0, 0)
    unknown, _, _ = counts.pop(None, nothing)
    _, _, leaderless = counts.pop(NO_LEADER, nothing)
    ids = sorted({broker for broker in counts if broker is not None} | {*broker_ids})
    fair = sum(leading for _, _, leading in counts.values()) / max(len(ids), 1) or 1.0
    rows = [
        BrokerLeaders(
            broker, preferred, not_led, not_led / max(preferred, 1), leading, leading / fair
        )
        for broker in ids
        for preferred, not_led, leading in [counts.get(broker, nothing)]
    ]
    return Leaders(rows, leaderless, unknown)


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
    leading = [row.leading for row in found.brokers]
    fine = (
        f"All {how_many(found.partitions, 'partition', 'partitions')} have leaders, and each of"
        f" the {len(leading):,} brokers leads about as many as it should:"
        f" {number_range(min(leading), max(leading))}."
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
    names = [
        f"broker {row.broker} leads {row.preferred - row.not_led:,} of {row.preferred:,}"
        for row in above
    ]
    who = "it is" if len(above) == 1 else "they are"
    sentence = (
        f"{how_many(len(above), 'broker leads', 'brokers lead')} fewer than {100 - percentage:g} %"
        f" of the partitions whose preferred leader {who} ({named(names)})."
    )
    return [Problem(sentence, [remedy])] if above else []


def _uneven(found: Leaders, even_out: Sequence[Remedy], give_back: Remedy) -> list[Problem]:
    leading, preferred = found.column("leading"), found.column("preferred")
    mean = leading.mean()
    share = f"the average of {shown(float(mean))} partitions"
    words = far_brokers(found.column("broker"), leading, mean, ("leads", "lead"), share)
    if not words:
        return []
    sentence = f"Of {len(leading):,} brokers, {words}."
    sides = zip(found.uneven, far_from(preferred, preferred.mean()), strict=True)
    remain = sum(len({*now} & {*then}) for now, then in sides)
    if remain:
        sentence += (
            f" Even if each partition were led by its preferred leader, {remain:,} of these brokers"
            " would lead too many or too few."
        )
    return [Problem(sentence, even_out if remain else [give_back])]


# --- output ---------------------------------------------------------------------------------------


def _summary(found: Leaders, names: Sequence[str], threshold: float) -> dict[str, Any]:
    return {
        "partitions": found.partitions,
        "brokers": len(found.brokers),
        "leaderless": found.leaderless,
        "leaderless_partitions": names,
        "unknown": found.unknown,
        "imbalance": found.imbalance,
        "worst_imbalance": max(row.imbalance for row in found.brokers),
        "threshold": threshold / 100,
        "above_threshold": len(found.above(threshold)),
        "leaders": spread(np.array([row.leading for row in found.brokers])),
        "overloaded": [found.brokers[place].broker for place in found.uneven[0]],
        "underloaded": [found.brokers[place].broker for place in found.uneven[1]],
        "per_broker": [row._asdict() for row in found.brokers],
    }


def _facts(found: Leaders, threshold: float) -> dict[str, object]:
    above = len(found.above(threshold))
    return {
        "partitions": found.partitions,
        "led by another": found.not_led,
        "imbalance": percent(found.imbalance),
        "leaderless": found.leaderless,
        f"brokers above {threshold:g} %": f"{above:,} of {len(found.brokers):,}",
    }


def _tables(found: Leaders, names: Sequence[str]) -> list[Table]:
    by_imbalance = sorted(found.brokers, key=lambda row: -row.imbalance)
    falling = sorted(found.brokers, key=lambda row: -row.leading)
    rising = sorted(found.brokers, key=lambda row: row.leading)
    tables = [_broker_table("Brokers, the highest imbalance first", by_imbalance)]
    if len(found.brokers) > 2 * _ROWS:
        tables = [
            _broker_table(f"The {_ROWS} brokers with the highest imbalance", by_imbalance[:_ROWS]),
            _broker_table(f"The {_ROWS} brokers that lead the most", falling[:_ROWS]),
            _broker_table(f"The {_ROWS} brokers that lead the fewest", rising[:_ROWS]),
        ]
    if not names:
        return tables
    more = found.leaderless - len(names)
    title = f"Without a leader{f' (and {more:,} more)' if more else ''}"
    return [*tables, Table(title, ("partition",), [(name,) for name in names])]


def _broker_table(caption: str, rows: Sequence[BrokerLeaders]) -> Table:
    return Table(
        caption,
        (
            "broker",
            "preferred leader of",
            "leads of these",
            "imbalance",
            "leads in all",
            "of the average",
        ),
        [
            (
                *(str(row.broker), row.preferred, row.preferred - row.not_led),
                *(percent(row.imbalance), row.leading, percent(row.of_fair_share)),
            )
            for row in rows
        ],
    )


def _draw(
    page: Page, found: Leaders, where: str, tables: Sequence[Table], threshold: float
) -> None:
    page.text(f"Read from {where}.")
    ids, leading = found.column("broker"), found.column("leading")
    if len(ids) <= MOST_BARS:
        preferred = found.column("preferred").tolist()
        series = {"leads": leading.tolist(), "is preferred leader of": preferred}
        page.figure(
            columns([*map(str, ids.tolist())], series, "partitions", of="broker id"),
            "Partitions that a broker leads, and partitions whose preferred leader it is because it"
            " has their first replica.",
        )
    else:
        fair = np.full(len(ids), leading.mean())
        caption = "Partitions that each broker leads"
        add_shares(page, ids, leading, "partitions", caption, fair, "average")
        worst = [found.brokers.index(row) for row in found.above(threshold)[:NAMED]]
        add_numbers(
            page,
            ids,
            100 * found.column("imbalance"),
            "%",
            "Imbalance of each broker in percent: of the partitions whose preferred leader it is,"
            f" the share that others lead{'. Orange: the highest' if worst else ''}",
            worst,
        )
    for table in tables:
        page.table(table)
    page.all_brokers(_broker_table(f"All {len(ids):,} brokers", found.brokers))


_command: Final = report_command(
    _NAME, "Report the actual and the preferred leaders of partitions.", _report
)
main: Final = partial(run_job, _command, _NAME)
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
