"""``compare``: what failures cost in each design, counted by ZooKeeper itself."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from regent.cli.output import (
    Output,
    note,
    output_option,
    print_facts,
    print_json,
    print_table,
)
from regent.core.errors import RegentError
from regent.designs.measuring.claims import check_claims
from regent.designs.measuring.comparison import (
    ComparisonSetting,
    DesignComparison,
    compare_designs,
)
from regent.designs.measuring.page import comparison_page
from regent.designs.measuring.registry import DESIGNS
from regent.designs.measuring.tables import (
    MeasureTable,
    claims_table,
    comparison_tables,
    growth_table,
)
from regent.designs.votes.comparison import MAX_FAILURES, VotesComparison, compare_votes
from regent.designs.votes.page import add_votes
from regent.designs.votes.table import votes_table
from regent.jobs.progress_line import ProgressLine

_SEED = 1
_MOST_BROKERS = 20
_MOST_PARTITIONS = 50_000


def _sizes(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return the sizes of ``--growth``, in ascending order."""
    try:
        sizes = sorted({int(size) for size in (text or "").split(",") if text})
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list like 100,1000,10000") from None
    for size in sizes:
        if not 1 <= size <= _MOST_PARTITIONS:
            raise click.BadParameter(f"{size} partitions: name 1 to {_MOST_PARTITIONS}")
    return tuple(sizes)


def _writable(_context: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a page that cannot be written, before hours are measured."""
    if path is not None and path.is_dir():
        raise click.BadParameter(f"{path} is a directory: name a file to write the page to")
    if path is not None and not os.access(path.parent, os.W_OK):
        raise click.BadParameter(f"{path.parent} cannot be written to: choose another folder")
    return path


@click.command(
    epilog="\n\n".join(f"{name}: {design.meaning}" for name, design in DESIGNS.items())
    + "\n\n"
    + "\n".join(
        (
            "\b",
            "Examples:",
            "  python -m regent.designs compare --partitions 100",
            "  python -m regent.designs compare --brokers 10 --failures 2 --growth 100,1000,10000",
        )
    )
)
@click.option(
    "--brokers",
    type=click.IntRange(2, _MOST_BROKERS),
    default=3,
    show_default=True,
    help="Brokers in each cluster.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, _MOST_PARTITIONS),
    default=1000,
    show_default=True,
    help="Partitions, each with three replicas.",
)
@click.option(
    "--failures",
    type=click.IntRange(1, MAX_FAILURES),
    default=1,
    show_default=True,
    help="Brokers that die at the same moment, and failures that the models of votes survive.",
)
@click.option(
    "--design",
    "names",
    type=click.Choice(list(DESIGNS)),
    multiple=True,
    help="Measure this design only; the option can be repeated.",
)
@click.option(
    "--growth",
    metavar="PARTITIONS,…",
    callback=_sizes,
    help="Measure these numbers of partitions, too, to see how the counts grow.",
)
@output_option
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    callback=_writable,
    help="Also write the result as one HTML page.",
)
def compare(
    brokers: int,
    partitions: int,
    failures: int,
    names: tuple[str, ...],
    growth: tuple[int, ...],
    output: str,
    html: Path | None,
) -> None:
    """Measure what failures cost in each design, counted by ZooKeeper itself.

    For each failure a cluster of real processes is started, with a ZooKeeper server of its own, and
    ended afterwards. A failure takes some 20 seconds to measure, and a minute with 10,000
    partitions. The machine should have nothing else to do.
    """
    if failures >= brokers:
        raise click.UsageError(
            f"--failures {failures} leaves no broker of {brokers}: name a smaller number"
        )
    chosen = {name: DESIGNS[name] for name in DESIGNS if name in names or not names}
    setting = ComparisonSetting(brokers, partitions, failures, growth)
    with ProgressLine() as progress:
        comparison = compare_designs(chosen, setting, progress.show)
        progress.show("simulates votes")
        votes = compare_votes(failures, _SEED)
    if html is not None:
        _write(comparison, votes, html)
    if output == Output.JSON:
        claims = [claim._asdict() for claim in check_claims(comparison)]
        print_json({**asdict(comparison), "claims": claims, "votes": asdict(votes)})
    else:
        _print(comparison)
        header, *rows = votes_table(votes)
        _print_table(MeasureTable("Models of replication, computed / simulated", header, rows))


def _print(comparison: DesignComparison) -> None:
    for table in comparison_tables(comparison):
        _print_table(table)
    if comparison.setting.growth:
        _print_table(growth_table(comparison))
    claims = claims_table(comparison)
    names = [name.capitalize() for name in claims.columns]
    for row in claims.rows:
        print_facts(list(zip(names, row, strict=True)))


def _print_table(table: MeasureTable) -> None:
    click.echo(table.caption)
    print_table(table.columns, table.rows)
    click.echo()


def _write(comparison: DesignComparison, votes: VotesComparison, path: Path) -> None:
    page = comparison_page(comparison)
    add_votes(page, votes)
    try:
        page.write(path)
    except OSError as error:
        raise RegentError(f"{path} cannot be written: {error.strerror}") from None
    note(f"wrote {path}")
