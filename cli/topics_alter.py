"""``topics alter``: adds partitions."""

from __future__ import annotations

import time

import click

from regent.cli.output import Output, examples, output_option, print_json
from regent.cli.placement import service_options
from regent.cli.topic_options import topic_argument, topics_client
from regent.cli.waiting import MAX_INT32, Waiting, timeout_option
from regent.client.cluster_connection import Cluster, bootstrap_option, pass_cluster
from regent.client.topics import raise_if_refused
from regent.client.wording import counted
from regent.core.protocol.messages.topics import UNSET, PlacementOptions


@click.command(epilog=examples("topics alter payments --partitions 24"))
@topic_argument
@click.option(
    "--partitions",
    type=click.IntRange(max=MAX_INT32),
    required=True,
    help="The new total number of partitions.",
)
@service_options
@timeout_option("Time to wait until every partition has a leader.")
@output_option
@bootstrap_option
@pass_cluster
def alter(
    cluster: Cluster,
    /,
    name: str | None,
    partitions: int,
    placement_service: bool,
    placement_timeout_ms: int,
    timeout_ms: int,
    output: str,
) -> None:
    """Add partitions to a topic; their number cannot decrease."""
    if name is None:
        raise click.UsageError("which topic? Give a name")
    until = time.monotonic() + placement_timeout_ms / 1000
    with Waiting() as waiting:
        response = topics_client(cluster, timeout_ms).grow(
            name,
            partitions,
            PlacementOptions(use_service=placement_service, awaits_service=True),
            (waiting.say, until),
        )
    raise_if_refused(response.results)
    (row,) = response.results
    old = row.previous_count  # unknown if the broker is one of Kafka's
    if output == Output.JSON:
        added = None if old == UNSET else list(range(old, partitions))
        print_json({"topic": name, "partitions": partitions, "added_partitions": added})
    else:
        before = "" if old == UNSET else f" ({old} before)"
        click.echo(f"Topic {name} has {counted(partitions, 'partition')} now{before}.")
