"""``migrate``: the move from Kafka's brokers to Regent's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, note, output_option, print_json
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.migration_check import obstacles_of
from regent.client.wording import counted

_SPACE = "no record is copied: the broker uses the log directories as they are, without more space"


@click.group(cls=HelpfulGroup)
def migrate() -> None:
    """Move a cluster from Kafka's brokers to Regent's."""


@migrate.command(
    epilog=examples(
        "migrate check --zookeeper zk1:2181/kafka",
        "migrate check --zookeeper zk1:2181 --kafka-properties server.properties -o json",
    )
)
@click.option(
    "--kafka-properties",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="The server.properties of a broker; may be repeated.",
)
@output_option
@pass_cluster
@click.pass_context
def check(context: click.Context, cluster: Cluster, /, files: Sequence[Path], output: str) -> None:
    """Say what stands in the way of the move, each with the remedy. Nothing is changed.

    Examined are the versions and settings of Kafka's brokers, those of topics in ZooKeeper, all
    partitions, reassignments, users and ACLs, and the files of --kafka-properties.

    The exit code is 1 if anything stands in the way.
    """
    with cluster.admin() as admin:
        found = obstacles_of(admin, files)
    if output == Output.JSON:
        rows = [{"check": name, "message": line} for name, line in found]
        print_json({"ready": not found, "obstacles": rows, "notes": [_SPACE]})
    else:
        for _, line in found:
            click.echo(line)
        click.echo(f"{counted(len(found), 'obstacle')}" if found else "nothing is in the way")
        note(_SPACE)
    if found:
        context.exit(1)
