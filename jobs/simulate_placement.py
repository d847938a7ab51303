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
from typing import Any, Final, TypeVar

import click
from pyspark.sql import SparkSession

from regent.admin.wording import listed, number_range
from regent.core.placement.replica_placer import Strategy, check
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.job_session import JobSession
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
)
from regent.jobs.reports.simulation_page import add_trials
from regent.jobs.reports.verdict import SPARK, Problem, Remedy, Verdict, command_line

F = TypeVar("F", bound=Callable[..., Any])

_NAME: Final = "simulate placement"
MAX_REPLICAS: Final = 100_000_000  # they take three gigabytes
_MAX_BROKERS: Final = 100_000


def _number(
    option: str, default: int, text: str, *, most: int | None = None, name: str | None = None
) -> Callable[[F], F]:
    """Return an option for a number of things, at least one."""
    names = (option,) if name is None else (option, name)
    kind = click.IntRange(1, most)
    return click.option(*names, type=kind, default=default, show_default=True, help=text)


@_number("--brokers", 1000, "Number of brokers.", most=_MAX_BROKERS)
@_number("--partitions", 100_000, "Number of partitions of all topics.")
@_number("--partitions-per-topic", 100, "Number of partitions of a topic.")
@_number("--replication-factor", 3, "Number of replicas of a partition.", name="factor")
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
@click.option(
    "--scatter-width",
    type=click.IntRange(min=1),
    help="How many brokers help to restore one, with copysets.  [default: 10]",
)
@click.option(
    "--growth",
    type=click.IntRange(0, _MAX_BROKERS),
    help="How many brokers are added.  [default: 1 %]",
)
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
    tables = [_comparison(trials), *_loss_tables(trials)]
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
        words += (
            f" If one fails, the busiest of the others leads up to {_busiest_leader(trial):.3g}"
            " times the average."
        )
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

    found = [
        best("Most even replicas", _fullest, "times the average at most"),
        best(
            f"fewest losses when {failures} brokers fail at once",
            lambda trial: 100 * trial.balance.loss[-1].probability,
            "% of all cases",
        ),
    ]
    if all(trial.failure for trial in trials.values()):
        found.append(
            best(
                "least load on one other broker when one fails",
                _busiest_leader,
                "times the average",
            )
        )
    return "; ".join(found) + "."


def _fullest(trial: Trial) -> float:
    replicas = trial.balance.loads["replicas"]
    return _ratio(int(replicas.max()), float(replicas.mean()))


def _busiest_leader(trial: Trial) -> float:
    assert trial.failure is not None
    mean = float(trial.balance.loads["preferred leaders"].mean())
    return _ratio(int(trial.failure.busiest_leader.max()), mean)


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
    columns = [dict(_measures(trial)) for trial in trials.values()]
    return Table(
        "Strategies" if len(trials) > 1 else "Strategy",
        ("", *trials),
        [(name, *(column.get(name) for column in columns)) for name in columns[0]],
    )


def _measures(trial: Trial) -> list[tuple[str, object]]:
    """Return the measures to compare, in the sequence of the report."""
    balance, failure, growth = trial.balance, trial.failure, trial.growth
    replicas, leaders = balance.loads["replicas"], balance.loads["preferred leaders"]
    most = balance.loss[-1]
    found: list[tuple[str, object]] = [
        ("replicas of a broker, mean", float(replicas.mean())),
        ("  most replicas, times the mean", _fullest(trial)),
        ("leaders of a broker, mean", float(leaders.mean())),
        ("  most leaders, times the mean", _ratio(int(leaders.max()), float(leaders.mean()))),
        ("copysets", balance.copysets),
        ("scatter width, mean", float(balance.scatter_width.mean())),
        (f"{most.failures} brokers fail: any loss", percent(most.probability)),
        ("  partitions lost, mean", most.expected_partitions),
    ]
    if balance.racks.names:
        lost = balance.lost_with_rack
        found += [
            ("a rack fails: any loss", percent(float((lost > 0).mean()))),
            ("  partitions lost with it, mean", float(lost.mean())),
        ]
    if failure is not None:
        shares = failure.busiest_source / replicas.clip(min=1)
        found += [
            ("a broker fails: brokers that lead instead, mean", float(failure.heirs.mean())),
            ("  busiest leader, times the mean, worst case", _busiest_leader(trial)),
            ("  brokers copied from, mean", float(failure.sources.mean())),
            ("  largest share copied from one, worst case", percent(float(shares.max()))),
        ]
    if growth is not None:
        total = int(replicas.sum())
        found += [
            (
                f"{growth.added} brokers added: moved if all are placed again",
                percent(growth.recomputed / total),
            ),
            ("  the fewest that even out the load", percent(growth.minimum / total)),
        ]
    return found


def _ratio(value: int, mean: float) -> float:
    return value / mean if mean else 0.0


def _loss_tables(trials: Mapping[str, Trial]) -> list[Table]:
    if len(trials) == 1:
        return [loss_table(trial.balance.loss) for trial in trials.values()]
    curves = {name: loss_table(trial.balance.loss).rows for name, trial in trials.items()}
    first = next(iter(curves.values()))
    return [
        Table(
            "Brokers that fail at once, and the probability of any loss",
            ("brokers", *curves),
            [(row[0], *(rows[k][1] for rows in curves.values())) for k, row in enumerate(first)],
        )
    ]


_command: Final = report_command(_NAME, "Simulate a placement scheme at scale.", _report)
main: Final = partial(run_job, _command, _NAME)
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
