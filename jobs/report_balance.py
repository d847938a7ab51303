"""``regent jobs report balance``: partitions that lack leaders or replicas, balance, and losses.

It has the spread of replicas and preferred leaders over brokers and racks, and of leaders if the
assignment has them. It has how many brokers can fail at once without a loss, and what is lost with
a rack.

The imbalance of a broker is Kafka's (``leader.imbalance.per.broker.percentage``): of the partitions
whose first replica it has, the share that it does not lead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click

from regent.jobs.assignment_source import assignment_frame, check_assignment
from regent.jobs.command import progress, run_job
from regent.jobs.job_session import JobSession
from regent.jobs.options import number_option
from regent.jobs.reports.balance import (
    Balance,
    add_balance,
    percent,
    summary,
    tables,
)
from regent.jobs.reports.balance_verdict import balance_verdict, named_brokers
from regent.jobs.reports.inputs import assignment_options, read_inputs
from regent.jobs.reports.measure import measure
from regent.jobs.reports.output import Report, report_command, report_options
from regent.jobs.reports.page import Table

_NAME: Final = "report balance"


@assignment_options
@number_option(
    "--threshold",
    kind=click.FloatRange(0, 100),
    default=10.0,
    text="Name brokers that do not lead more than this percentage of their partitions.",
)
@report_options
def _report(job: JobSession, options: Mapping[str, Any]) -> Report:
    source, brokers = read_inputs(options, job.files)
    session = job.start(is_small=source.is_small)
    frame = assignment_frame(session, source).persist()
    try:
        with progress("reading the assignment", session):
            check_assignment(frame, source)
        with progress("measuring the balance", session):
            balance = measure(session, frame, brokers)
    finally:
        frame.unpersist()
    facts = _facts(balance)
    return Report(
        "Balance of an assignment",
        balance_verdict(balance, options),
        {name: value for name, value in facts.items() if value},
        {
            **{name.replace(" ", "_"): value for name, value in facts.items()},
            **named_brokers(balance),
            "topics_with_one_replica": balance.single.names,
            "topics_in_one_rack": balance.together.names,
            "threshold": options["threshold"] / 100,
            **summary(balance),
        },
        [
            Table(f"Assignment: {source.where}", tuple(facts), [tuple(facts.values())]),
            *tables(balance),
        ],
        partial(add_balance, balance=balance, where=source.where),
    )


def _facts(balance: Balance) -> dict[str, object]:
    facts: dict[str, object] = {
        "partitions": balance.partitions,
        "brokers": len(balance.broker_ids),
        "racks": len(balance.racks.names),
        "brokers not listed": len(balance.unlisted),
    }
    if balance.leaders:
        facts |= {
            "leaderless": balance.states["leaderless"].partitions,
            "under min ISR": balance.states["under_min_isr"].partitions,
            "under-replicated": balance.states["under_replicated"].partitions,
            "led by another": percent(balance.leaders.imbalance),
        }
    return facts


_command: Final = report_command(
    _NAME, "Report the balance of brokers, and losses by failures.", _report
)
main: Final = partial(run_job, _command, _NAME)
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
