"""What all benchmarks share: their options, their repetitions and the form of their results.

A benchmark is a generator function of ``Case`` values under ``@benchmark``. The frame adds its
options (``-o``, ``--repetitions`` and, for one that clients can run against any cluster,
``--bootstrap``), runs it, and prints a ``Result``.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import click

from bench.result import Case, MeasuredCase, Result, Spread, describe_machine, load_average

OWN_CLUSTER: Final = "own"

F = TypeVar("F", bound=Callable[..., Any])
Measure: TypeAlias = Callable[..., Iterator[Case]]


def sizes(topics: int, partitions: int) -> Callable[[F], F]:
    """Add the options ``--topics`` and ``--partitions`` of each, with their defaults."""

    def decorate(measure: F) -> F:
        for name, default in (("--partitions", partitions), ("--topics", topics)):
            measure = click.option(
                name, type=click.IntRange(1), default=default, show_default=True
            )(measure)
        return measure

    return decorate


def benchmark(*, any_cluster: bool = False) -> Callable[[Measure], click.Command]:
    """Make a command of a generator of cases, which has its name.

    Its help is the text of its module, and then its own. With ``any_cluster`` it is called with
    ``bootstrap``: the servers to measure, None for a cluster that it starts. Several clusters are
    measured in turn, in each repetition.
    """

    def decorate(measure: Measure) -> click.Command:
        name = measure.__name__.replace("_", "-")

        @wraps(measure)
        def run(output: str, repetitions: int, **options: Any) -> None:
            clusters = options.pop("clusters", None)
            result = run_benchmark(name, measure, repetitions, options, clusters)
            sys.stdout.write(result.as_json() if output == "json" else result.as_table())

        texts = filter(None, map(inspect.getdoc, (inspect.getmodule(measure), measure)))
        command = click.command(name, help=_help("\n\n".join(texts)))(run)
        command.params += _options(any_cluster=any_cluster)
        return command

    return decorate


def run_benchmark(
    name: str,
    measure: Measure,
    repetitions: int,
    options: Mapping[str, Any],
    clusters: Sequence[str] | None = None,
) -> Result:
    """Run a benchmark, each cluster in turn in each repetition, and return its result."""
    gathered = _Gathered()
    load_before, started = load_average(), time.time()
    for repetition in range(repetitions):
        for cluster in clusters or (None,):
            given = dict(options)
            label: dict[str, Any] = {}
            if cluster is not None:
                given["bootstrap"] = None if cluster == OWN_CLUSTER else cluster
                label = {"cluster": cluster} if len(clusters or ()) > 1 else {}
            for case in measure(**given):
                gathered.add({**label, **case.shape}, case.figures)
                _say(f"{repetition + 1}/{repetitions}", {**label, **case.shape}, case.figures)
    return Result(
        name,
        {key: _plain(value) for key, value in options.items()},
        describe_machine(),
        started,
        time.time() - started,
        load_before,
        load_average(),
        repetitions,
        gathered.cases(),
    )


class _Found(NamedTuple):
    shape: dict[str, Any]
    runs: list[dict[str, Any]]


class _Gathered:
    """The figures of all repetitions, by what was measured."""

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}

    def add(self, shape: dict[str, Any], figures: Mapping[str, Any]) -> None:
        """Add the figures of one run."""
        found = self._found.setdefault(repr(shape), _Found(shape, []))
        found.runs.append(dict(_flat(figures)))

    def cases(self) -> tuple[MeasuredCase, ...]:
        """Return one case for each shape, in the sequence of the first runs."""
        return tuple(
            MeasuredCase(f.shape, *_split(f.runs), len(f.runs)) for f in self._found.values()
        )


def _split(runs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Spread], dict[str, Any]]:
    """Return the spread of each number, and of everything else what the last run had."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    figures, notes = {}, {}
    for name in names:
        values = [run[name] for run in runs if name in run]
        if all(type(value) in (int, float) for value in values):
            figures[name] = Spread.of(values)
        else:
            notes[name] = values[-1]
    return figures, notes


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _options(*, any_cluster: bool) -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(
            ["--repetitions"],
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="How often everything is measured; the result has the median and the spread.",
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(["table", "json"]),
            default="table",
            show_default=True,
            help="The form of the result.",
        ),
    ]
    if any_cluster:
        bootstrap = click.Option(
            ["--bootstrap", "clusters"],
            multiple=True,
            default=(OWN_CLUSTER,),
            show_default=True,
            metavar="HOST:PORT,…",
            help="A running cluster of three brokers or more; 'own': one that is started for the"
            " benchmark. If it is given several times, the clusters are measured in turn.",
        )
        options.append(bootstrap)
    return options


def _help(text: str) -> str:
    """Return the text of a module for click, which must not join its lines."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in text.strip().split("\n\n"))


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else _listed(value)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple | list) else str(value)


def _say(repetition: str, shape: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    sys.stderr.write(f"[{repetition}] {dict(shape)}: {dict(figures)}\n")
