"""``compare``: what failures cost in each design, counted by ZooKeeper itself."""

from __future__ import annotations

from dataclasses import asdict

import click

from regent.cli.output import (
    Output,
    output_option,
    print_facts,
    print_json,
    print_table,
)
from regent.designs.measuring.claims import check_claims
from regent.designs.measuring.comparison import (
    ComparisonSetting,
    DesignComparison,
    compare_designs,
)
from regent.designs.measuring.registry import DESIGNS
from regent.designs.measuring.tables import (
    MeasureTable,
    claims_table,
    comparison_tables,
    growth_table,
)
from regent.designs.votes.table import MAX_FAILURES, votes_table
from regent.jobs.progress_line import ProgressLine

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
def compare(
    brokers: int,
    partitions: int,
    failures: int,
    names: tuple[str, ...],
    growth: tuple[int, ...],
    output: str,
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
    header, *rows = votes_table(failures)
    if output == Output.JSON:
        claims = [claim._asdict() for claim in check_claims(comparison)]
        print_json(
            {
                **asdict(comparison),
                "claims": claims,
                "votes": [dict(zip(header, row, strict=True)) for row in rows],
            }
        )
    else:
        _print(comparison)
        _print_table(MeasureTable("Models of replication", header, rows))


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
