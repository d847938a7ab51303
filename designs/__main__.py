"""``python -m regent.designs``: the study of the designs before the controller, in a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

import click

from regent.cli.output import Output, output_option, print_json, print_table
from regent.client.progress_line import ProgressLine
from regent.core.errors import RegentError
from regent.designs.measuring.comparison import CLUSTERS, Failure, measure
from regent.designs.votes import MAX_FAILURES, votes_table


@click.group(context_settings={"max_content_width": 100})
def cli() -> None:
    """Run the designs that came before the controller, and measure them beside it."""


@cli.command()
@click.option(
    "--brokers",
    type=click.IntRange(2, 20),
    default=3,
    show_default=True,
    help="Brokers in each cluster.",
)
@click.option(
    "--partitions",
    "sizes",
    type=click.IntRange(1, 50_000),
    multiple=True,
    default=(1, 1000),
    show_default=True,
    help="Partitions, each with three replicas; the option can be repeated.",
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
    type=click.Choice(list(CLUSTERS)),
    multiple=True,
    help="Measure this design only; the option can be repeated.",
)
@output_option
def compare(
    brokers: int, sizes: Sequence[int], failures: int, names: Sequence[str], output: str
) -> None:
    """Measure what failures cost in each design, counted by ZooKeeper itself.

    For each failure a cluster of real processes is started, with a ZooKeeper server of its own, and
    ended afterwards. That takes half a minute, and some minutes with 10,000 partitions. The machine
    should have nothing else to do.
    """
    if failures >= brokers:
        raise click.UsageError(
            f"--failures {failures} leaves no broker of {brokers}: name a smaller number"
        )
    designs = [name for name in CLUSTERS if name in names or not names]
    with ProgressLine() as progress:
        found = {
            (size, design): measure(
                design,
                Failure(brokers, size, failures, design == "v3-controller"),
                progress.show,
            )
            for size, design in product(sizes, designs)
        }
    header, *rows = votes_table(failures)
    if output == Output.JSON:
        measured = [{"partitions": p, "design": d, **figures} for (p, d), figures in found.items()]
        votes = [dict(zip(header, row, strict=True)) for row in rows]
        print_json({"measured": measured, "votes": votes})
        return
    for size in sizes:
        click.echo(f"{size:,} partitions, {failures} of {brokers} brokers die")
        measures = dict.fromkeys(name for design in designs for name in found[size, design])
        print_table(
            ("measure", *designs),
            [(name, *(found[size, d].get(name) for d in designs)) for name in measures],
        )
        click.echo()
    click.echo("Models of replication")
    print_table(header, rows)


if __name__ == "__main__":
    try:
        cli(prog_name="python -m regent.designs")
    except RegentError as error:
        sys.exit(f"designs: {error}")
