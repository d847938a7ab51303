"""Runs a choice of benchmarks, and tells what got slower since the baseline.

The first run keeps its results as the baseline, in a file of this machine; ``--keep`` replaces it.
Later runs are compared with it. A figure got slower, or larger, if its median is worse by more than
the spread, the larger one of both runs, and by more than a twentieth. Then the exit status is 1.
Run it on a quiet machine: it says when the load average was above the number of processors.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from bench.result import Spread, measured_cases, number, shape_line

PLAN: Final[Mapping[str, Sequence[str]]] = {
    "failover-load": ("--partitions", "2000", "--partitions", "20000", "--failovers", "5"),
    "create-load": ("--partitions", "20000", "--repetitions", "3"),
    "crash-load": ("--partitions", "20000", "--repetitions", "3"),
    "produce": ("--size", "1000", "--partitions", "10", "--seconds", "5", "--repetitions", "3"),
}
LEAST_CHANGE: Final = 0.05
_HIGHER_IS_BETTER: Final = "_per_s"
_LOWER_IS_BETTER: Final = ("seconds", "_s", "_ms", "_mb", "_percent", "_broker_s", "per_partition")
_NOT_OURS: Final = ("sync_", "pipelined_", "machine_pauses", "bench_cpu")
_ROOT: Final = Path(__file__).parents[1]
BASELINE: Final = Path(__file__).with_name("baseline.json")


class Change(NamedTuple):
    """A figure that differs from the baseline by more than the spread."""

    benchmark: str
    shape: Mapping[str, Any]
    figure: str
    before: Spread
    now: Spread
    is_worse: bool

    def __str__(self) -> str:
        return (
            f"{'worse' if self.is_worse else 'better'}: {self.benchmark}"
            f" ({shape_line(self.shape)}) {self.figure}:"
            f" {number(self.before.median)} -> {number(self.now.median)}"
            f" ({(self.now.median / self.before.median - 1) * 100:+.0f} %)"
        )


@click.command("compare")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    default=BASELINE,
    show_default="bench/baseline.json",
)
@click.option("--keep", is_flag=True, help="Replace the baseline by this run.")
@click.option("--only", type=click.Choice(list(PLAN)), multiple=True, default=list(PLAN))
def compare(baseline: Path, *, keep: bool, only: Sequence[str]) -> None:
    """Run the benchmarks, and compare them with the baseline or keep them as such."""
    results = {name: run(name, PLAN[name]) for name in only}
    if keep or not baseline.exists():
        kept = json.loads(baseline.read_text("utf-8")) if baseline.exists() else {}
        baseline.parent.mkdir(parents=True, exist_ok=True)
        baseline.write_text(json.dumps({**kept, **results}, indent=2) + "\n", encoding="utf-8")
        click.echo(f"{baseline} keeps these results as the baseline")
        return
    before = json.loads(baseline.read_text("utf-8"))
    found = list(changes(before, results))
    for change in found:
        click.echo(str(change))
    for name in before.keys() & results.keys():
        _warn_of_load(name, before[name], results[name])
    worse = sum(change.is_worse for change in found)
    click.echo(f"{worse} figures are worse and {len(found) - worse} better than in {baseline}")
    sys.exit(worse > 0)


def run(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run one benchmark in a process of its own; return its result."""
    click.echo(f"{name} {' '.join(arguments)}", err=True)
    command = [sys.executable, "-m", "bench", name, *arguments, "-o", "json"]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise click.ClickException(f"{name} failed")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _warn_of_load(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Say so if the machine had more to do than its processors could, in one of the runs."""
    loads = [max(result["load_before"], result["load_after"]) for result in (before, now)]
    if max(loads) > now["machine"]["processors"]:
        click.echo(
            f"{name}: the load average was {loads[0]:.1f} for the baseline, {loads[1]:.1f} now"
        )


def changes(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[Change]:
    """Yield the figures that differ by more than the spread, by the names of benchmarks."""
    for benchmark in before.keys() & now.keys():
        former = {repr(case.shape): case for case in measured_cases(before[benchmark])}
        for case in measured_cases(now[benchmark]):
            known = former.get(repr(case.shape))
            for figure, spread in case.figures.items():
                if known is None or figure not in known.figures:
                    continue
                was = known.figures[figure]
                sign = _sign(figure)
                if sign and _differ(was, spread):
                    is_worse = sign * (spread.median - was.median) > 0
                    yield Change(benchmark, case.shape, figure, was, spread, is_worse)


def _differ(before: Spread, now: Spread) -> bool:
    distance = abs(now.median - before.median)
    spread = max(before.width, now.width)
    return before.median > 0 and distance > max(spread, LEAST_CHANGE * before.median)


def _sign(figure: str) -> int:
    """Return 1 if less is better, -1 if more is; 0: the figure says nothing about us."""
    if figure.startswith(_NOT_OURS):
        return 0
    if figure.endswith(_HIGHER_IS_BETTER):
        return -1
    return int(figure.endswith(_LOWER_IS_BETTER))
