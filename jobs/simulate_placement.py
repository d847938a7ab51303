"""``regent jobs simulate placement``: simulates a placement scheme for a large cluster.

Places partitions on imaginary brokers, as ``regent jobs place`` does. Reports the balance, the load
of the other brokers after one has failed, the probability of losses when several brokers or a rack
fail, and the moves when brokers are added. ``--compare`` compares all schemes. Kafka's schemes
begin each topic at a random broker, as Kafka's tools do; the others count through all partitions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from regent.client.wording import listed, number_range
from regent.core.placement.replica_placer import Strategy, check
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.job_session import JobSession
from regent.jobs.options import number_option
from regent.jobs.reports.balance import (
    LossOptions,
    check_failures,
    loss_table,
    measure,
    percent,
    racks_of,
    spread,
    summary,
)
from regent.jobs.reports.inputs import loss_options
from regent.jobs.reports.output import Report, report_command, report_options
from regent.jobs.reports.page import Table
from regent.jobs.reports.placement_trial import (
    BLOCKS,
    INTERLEAVED,
    UNIFORM,
    Trial,
    TrialSetting,
    failure_load,
    growth_cost,
    place_on_paper,
    placement_request,
    rack_names,
    strategies_to_compare,
    times_the_mean,
)
from regent.jobs.reports.simulation_page import add_trials
from regent.jobs.reports.verdict import SPARK, Problem, Remedy, Verdict, command_line

_NAME: Final = "simulate placement"
MAX_REPLICAS: Final = 100_000_000  # they take three gigabytes
_BROKERS: Final = click.IntRange(1, 100_000)
_ADDED: Final = click.IntRange(0, 100_000)


@number_option("--brokers", default=1000, kind=_BROKERS, text="Number of brokers.")
@number_option("--partitions", default=100_000, text="Number of partitions of all topics.")
@number_option("--partitions-per-topic", default=100, text="Number of partitions of a topic.")
@number_option(
    "--replication-factor", "factor", default=3, text="Number of replicas of a partition."
)
@click.option(
    "--racks", type=click.IntRange(min=0), default=0, help="Number of racks; 0: no racks."
)
@click.option(
    "--rack-layout",
    type=click.Choice([INTERLEAVED, BLOCKS]),
    default=INTERLEAVED,
    show_default=True,
    help="Whether brokers with neighbouring ids are in different racks, or in the same.",
)
@click.option(
    "--strategy",
    type=click.Choice((*(strategy.value for strategy in Strategy), UNIFORM)),
    default="ring",
    show_default=True,
    help="How replicas are spread over the brokers.",
)
@click.option("--compare", is_flag=True, help="Try all strategies.")
@number_option(
    "--scatter-width",
    text="How many brokers help to restore one, with copysets.  [default: 10]",
)
@number_option("--growth", kind=_ADDED, text="How many brokers are added.  [default: 1 %]")
@loss_options
@report_options
def _report(job: JobSession, options: Mapping[str, Any]) -> Report:
    setting = TrialSetting(**{name: options[name] for name in TrialSetting._fields})
    names = strategies_to_compare(setting) if options["compare"] else [options["strategy"]]
    _check(setting, names, options["failures"])
    growth = options["growth"]
    added = -(-setting.brokers // 100) if growth is None else growth
    loss = LossOptions(options["failures"], options["trials"], options["seed"])
    session = job.start(is_small=setting.partitions * len(names) <= 1_000_000)
    trials = {str(name): _try(session, setting, name, added, loss) for name in names}
    tables = [_comparison(trials), _loss_table(trials)]
    return Report(
        "Simulated placement of replicas",
        _verdict(trials, options),
        {
            "brokers": setting.brokers,
            "racks": setting.racks or None,
            "partitions": setting.partitions,
            "replication factor": setting.factor,
            "partitions of a topic": setting.partitions_per_topic,
        },
        {
            **setting._asdict(),
            "growth": added,
            "trials": options["trials"],
            "strategies": {name: _fields(trial) for name, trial in trials.items()},
        },
        tables,
        partial(add_trials, trials=trials, tables=tables),
    )


def _check(setting: TrialSetting, names: Sequence[str], failures: int | None) -> None:
    if setting.partitions * setting.factor > MAX_REPLICAS:
        raise InputError(f"more than {MAX_REPLICAS:,} replicas: use fewer partitions")
    if setting.racks > setting.brokers:
        raise InputError(f"{setting.racks} racks need as many brokers: use fewer racks")
    if Strategy.RACK_AWARE in names and not setting.racks:
        raise InputError(f"strategy {Strategy.RACK_AWARE} needs racks: say how many with --racks")
    check_failures(failures, setting.brokers)
    if setting.scatter_width is not None and Strategy.COPYSET not in names:
        raise InputError(f"--scatter-width goes with strategy {Strategy.COPYSET}")
    for name in names:
        check(placement_request(setting, Strategy.RING if name == UNIFORM else Strategy(name)))


def _try(
    spark: SparkSession, setting: TrialSetting, strategy: str, added: int, loss: LossOptions
) -> Trial:
    started = time.monotonic()
    with progress(f"placing: {strategy}", spark):
        placed = place_on_paper(spark, setting, strategy)
    with progress(f"looking at the placement: {strategy}"):
        racks = racks_of(placed, dict(enumerate(rack_names(setting))))
        balance = measure(placed, racks, {}, loss)
        failure = failure_load(placed.by_factor[setting.factor], setting.brokers)
    growth = None
    if added:
        with progress(f"growing: {strategy}", spark):
            growth = growth_cost(placed, place_on_paper(spark, setting, strategy, added))
    return Trial(balance, failure, growth, time.monotonic() - started)


# --- verdict --------------------------------------------------------------------------------------


def _verdict(trials: Mapping[str, Trial], options: Mapping[str, Any]) -> Verdict:
    if len(trials) > 1:
        return Verdict([], _best(trials))
    [(name, trial)] = trials.items()
    balance, most = trial.balance, trial.balance.loss[-1]
    replicas = balance.loads["replicas"]
    range_ = number_range(int(replicas.min()), int(replicas.max()))
    words = (
        f"With {name}, each broker holds {range_} replicas. If {most.failures} of"
        f" {len(replicas):,} brokers fail at once, a partition is lost with a probability of"
        f" {percent(most.probability)}."
    )
    if trial.failure is not None:
        times = f"{trial.busiest_leader:.3g} times the average"
        words += f" If one fails, the busiest of the others leads up to {times}."
    lost = balance.lost_with_rack
    if len(lost) < 2 or not lost.any():
        return Verdict([], words)
    other = "jobs simulate placement --strategy rack-aware"
    names = ("brokers", "partitions", "racks", "rack_layout", *SPARK)
    remedy = Remedy("To spread over racks", command_line(other, options, *names))
    loses = f"The failure of a rack loses {lost.mean():,.4g} partitions on average."
    return Verdict([Problem(loses, [remedy]), Problem(words)], "")


def _best(trials: Mapping[str, Trial]) -> str:
    """Say which strategies are best, and in what."""
    failures = next(iter(trials.values())).balance.loss[-1].failures

    def best(what: str, number: Callable[[Trial], float], unit: str) -> str:
        least = min(map(number, trials.values()))
        names = [name for name, trial in trials.items() if number(trial) == least]
        return f"{what}: {listed(names)} ({least:.3g} {unit})"

    losses = f"fewest losses when {failures} brokers fail at once"
    found = [
        best("Most even replicas", lambda trial: trial.fullest, "times the average at most"),
        best(losses, lambda trial: 100 * trial.balance.loss[-1].probability, "% of all cases"),
    ]
    if all(trial.failure for trial in trials.values()):
        one = "least load on one other broker when one fails"
        found.append(best(one, lambda trial: trial.busiest_leader, "times the average"))
    return "; ".join(found) + "."


# --- output ---------------------------------------------------------------------------------------


def _fields(trial: Trial) -> dict[str, Any]:
    fields = summary(trial.balance)
    fields["one_failure"] = trial.failure and {
        name: spread(values) for name, values in trial.failure._asdict().items()
    }
    fields["growth"] = trial.growth and trial.growth._asdict()
    fields["seconds"] = round(trial.seconds, 3)
    return fields


def _comparison(trials: Mapping[str, Trial]) -> Table:
    columns = [_measures(trial) for trial in trials.values()]
    return Table(
        "Strategies" if len(trials) > 1 else "Strategy",
        ("", *trials),
        [(name, *(column.get(name) for column in columns)) for name in columns[0]],
    )


def _measures(trial: Trial) -> dict[str, object]:
    """Return the measures to compare, in the sequence of the report."""
    balance, failure, growth = trial.balance, trial.failure, trial.growth
    replicas, leaders = balance.loads["replicas"], balance.loads["preferred leaders"]
    most = balance.loss[-1]
    found: dict[str, object] = {
        "replicas of a broker, mean": float(replicas.mean()),
        "  most replicas, times the mean": trial.fullest,
        "leaders of a broker, mean": float(leaders.mean()),
        "  most leaders, times the mean": times_the_mean(leaders.max(), leaders),
        "copysets": balance.copysets,
        "scatter width, mean": float(balance.scatter_width.mean()),
        f"{most.failures} brokers fail: any loss": percent(most.probability),
        "  partitions lost, mean": most.expected_partitions,
    }
    if balance.racks.names:
        lost = balance.lost_with_rack
        found["a rack fails: any loss"] = percent(float((lost > 0).mean()))
        found["  partitions lost with it, mean"] = float(lost.mean())
    if failure is not None:
        shares = failure.busiest_source / replicas.clip(min=1)
        found |= {
            "a broker fails: brokers that lead instead, mean": float(failure.heirs.mean()),
            "  busiest leader, times the mean, worst case": trial.busiest_leader,
            "  brokers copied from, mean": float(failure.sources.mean()),
            "  largest share copied from one, worst case": percent(float(shares.max())),
        }
    if growth is not None:
        total = int(replicas.sum())
        moved = f"{growth.added} brokers added: moved if all are placed again"
        found[moved] = percent(growth.recomputed / total)
        found["  the fewest that even out the load"] = percent(growth.minimum / total)
    return found


def _loss_table(trials: Mapping[str, Trial]) -> Table:
    tables = {name: loss_table(trial.balance.loss) for name, trial in trials.items()}
    first = next(iter(tables.values()))
    if len(tables) == 1:
        return first
    brokers, *_ = zip(*first.rows, strict=True)
    return Table.of(
        "Brokers that fail at once, and the probability of any loss",
        {
            "brokers": brokers,
            **{name: [row[1] for row in table.rows] for name, table in tables.items()},
        },
    )


_command: Final = report_command(_NAME, "Simulate a placement scheme at scale.", _report)
main: Final = partial(run_job, _command, _NAME)
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
