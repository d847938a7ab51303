"""``regent jobs report balance``: the balance of brokers and racks, and losses by failures.

It has the spread of replicas and preferred leaders over brokers and racks, of leaders if the
assignment has them, and of bytes if the log directories are on this machine. It has scatter width
and copysets, how many brokers can fail at once without a loss, and what is lost with a rack.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click
import numpy as np
import pyarrow

from regent.jobs.assignment_source import assignment_frame, check_assignment
from regent.jobs.command import progress, run_job
from regent.jobs.job_session import JobSession
from regent.jobs.reports.balance import (
    add_balance,
    measure,
    racks_of,
    summary,
    tables,
)
from regent.jobs.reports.balance_verdict import (
    at_risk_of_one_failure,
    balance_verdict,
    named_brokers,
)
from regent.jobs.reports.inputs import (
    assignment_options,
    bytes_per_broker,
    log_directories,
    read_inputs,
)
from regent.jobs.reports.output import Report, report_command, report_options
from regent.jobs.reports.page import Table
from regent.jobs.reports.replica_arrays import Counts, ReplicaArrays, positions, replica_arrays

_NAME: Final = "report balance"


@assignment_options
@click.option("--log-dirs", metavar="DIR,DIR", help="Log directories of brokers, to count bytes.")
@report_options
def _report(job: JobSession, options: Mapping[str, Any]) -> Report:
    source, brokers = read_inputs(options, job.files)
    sizes = bytes_per_broker(log_directories(options))
    session = job.start()
    with progress("reading the assignment", session):
        frame = assignment_frame(session, source)
        check_assignment(frame, source)
        table = frame.select("replicas", "leader").toArrow()
    arrays = replica_arrays(table["replicas"], [*(b.broker_id for b in brokers), *sizes])
    racks = racks_of(arrays, {b.broker_id: b.rack for b in brokers})
    more_loads = _leaders(arrays, table["leader"]) | _bytes(arrays, sizes)
    with progress("measuring the balance", session):
        balance = measure(arrays, racks, more_loads, brokers)
        at_risk = at_risk_of_one_failure(balance, arrays, frame)
    facts = {
        "partitions": arrays.partitions,
        "brokers": arrays.brokers,
        "racks": len(racks.names),
        "copysets": balance.copysets,
        "brokers not listed": len(balance.unlisted),
    }

    return Report(
        "Balance of an assignment",
        balance_verdict(balance, arrays, at_risk, options),
        {name: facts[name] for name in ("partitions", "brokers", "racks") if facts[name]},
        {
            **{name.replace(" ", "_"): value for name, value in facts.items()},
            **named_brokers(balance),
            "topics_with_one_replica": [*at_risk.single],
            "topics_in_one_rack": [*at_risk.together],
            **summary(balance),
        },
        [
            Table(f"Assignment: {source.where}", tuple(facts), [tuple(facts.values())]),
            *tables(balance),
        ],
        partial(add_balance, balance=balance, where=source.where),
    )


def _leaders(arrays: ReplicaArrays, leader: pyarrow.ChunkedArray) -> dict[str, Counts]:
    """Count the partitions each broker leads; empty when no leader is known."""
    if leader.null_count == len(leader):
        return {}
    known = leader.drop_null().to_numpy()
    leaders = known[np.isin(known, arrays.broker_ids)]
    found = positions(arrays.broker_ids, leaders)
    return {"leaders": np.bincount(found, minlength=arrays.brokers)}


def _bytes(arrays: ReplicaArrays, sizes: Mapping[int, int]) -> dict[str, Counts]:
    if not sizes:
        return {}
    return {"bytes": np.array([sizes.get(b, 0) for b in arrays.broker_ids.tolist()], np.int64)}


_command: Final = report_command(
    _NAME, "Report the balance of brokers, and losses by failures.", _report
)
main: Final = partial(run_job, _command, _NAME)
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
