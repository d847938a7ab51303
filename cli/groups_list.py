"""``groups list``: the consumer groups of all brokers."""

from __future__ import annotations

import click

from regent.cli.group_admin import GroupAdmin
from regent.cli.output import Output, output_option, print_json, print_table, quoted
from regent.cli.waiting import timeout_option
from regent.client.cluster_connection import Cluster, pass_cluster


@click.command("list")
@click.option("--state", "with_state", is_flag=True, help="Print states, too.")
@timeout_option("Time for the answers of the brokers.")
@output_option
@pass_cluster
def list_groups(cluster: Cluster, /, with_state: bool, timeout_ms: int, output: str) -> None:
    """List the consumer groups of all brokers; JSON always has their states.

    An empty name, and one that would be misread on its line, is printed as a JSON string.
    """
    found = GroupAdmin(cluster, timeout_ms).groups()
    if output == Output.JSON:
        print_json([row._asdict() for row in found])
    elif with_state:
        print_table(("group", "state"), [(quoted(row.group), row.state) for row in found])
    else:
        for row in found:
            click.echo(quoted(row.group))
