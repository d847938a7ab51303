"""A chart of how figures grow with the number of partitions, from results of benchmarks.

``python -m bench failover-load --partitions 2000 --partitions 20000 -o json > result.json``, then
``python -m bench growth result.json --svg growth.svg``. Both axes are logarithmic: what grows in
proportion is a line of slope 1. Lines are medians, and shades reach from the minimum to the
maximum. Several results can be drawn together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from matplotlib import rc_context
from matplotlib.figure import Figure

from bench.result import Spread, measured_cases
from regent.jobs.reports.charts import Line, lines

GROWS_WITH = "partitions"
_SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "bench", "axes.grid": True}


@click.command("growth")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--figure",
    "figures",
    multiple=True,
    default=("seconds", "cpu_s", "pipelined_seconds", "sync_seconds"),
    show_default=True,
    help="A figure to draw; the option can be repeated.",
)
@click.option("--label", default="seconds", show_default=True, help="What the figures are.")
@click.option("--svg", type=click.Path(path_type=Path), required=True, help="The file to write.")
def growth(files: Sequence[Path], figures: Sequence[str], label: str, svg: Path) -> None:
    """Draw results, which have cases of several numbers of partitions."""
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    drawn = list(growth_lines(results, figures))
    if not drawn:
        raise click.ClickException(f"no result has {' or '.join(figures)}")
    with rc_context(_SVG):
        figure = Figure(figsize=(8, 5), layout="constrained")
        draw = lines(drawn, GROWS_WITH, label, x_scale="log", y_scale="log")
        axes = figure.add_subplot()
        draw(axes)
        axes.legend()
        places = sorted({x for line in drawn for x in line.x})
        axes.set_xticks(places, [f"{x:,}" for x in places], minor=False)
        axes.yaxis.set_major_formatter("{x:g}")
        figure.savefig(svg, format="svg", metadata={"Date": None})


def growth_lines(results: Iterable[Mapping[str, Any]], figures: Sequence[str]) -> Iterable[Line]:
    """Yield a line for each figure of each benchmark, over the numbers of partitions."""
    found: dict[str, dict[int, Spread]] = {}
    for result in results:
        for case in measured_cases(result):
            for figure in figures:
                if GROWS_WITH in case.shape and figure in case.figures:
                    line = found.setdefault(f"{result['benchmark']}: {figure}", {})
                    line[case.shape[GROWS_WITH]] = case.figures[figure]
    for name, points in found.items():
        x = sorted(points)
        spreads = [points[partitions] for partitions in x]
        band = [spread.min for spread in spreads], [spread.max for spread in spreads]
        yield Line(name, x, [spread.median for spread in spreads], band=band)
