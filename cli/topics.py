"""``topics``: the group of commands, and ``list``."""

from __future__ import annotations

import click

from regent.cli.lazy_group import LazyCommand, LazyGroup
from regent.cli.output import Output, output_option, print_json, quoted
from regent.client.cluster_connection import Cluster, pass_cluster

COMMANDS = {
    "create": LazyCommand("regent.cli.topics_create", "create", "Create one topic or many."),
    "list": LazyCommand("regent.cli.topics", "list_topics", "List the topics."),
    "describe": LazyCommand(
        "regent.cli.topics_describe", "describe", "Show leaders, replicas and ISRs."
    ),
    "alter": LazyCommand("regent.cli.topics_alter", "alter", "Give a topic more partitions."),
    "config": LazyCommand(
        "regent.cli.topics_config", "config", "Show or change settings of a topic."
    ),
    "delete": LazyCommand("regent.cli.topics_delete", "delete", "Delete topics."),
    "protect": LazyCommand(
        "regent.cli.topics_protect", "protect", "Refuse requests to delete topics."
    ),
    "unprotect": LazyCommand(
        "regent.cli.topics_protect", "unprotect", "Allow requests to delete topics again."
    ),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def topics() -> None:
    """Create, list, describe, change and delete topics."""


@click.command("list")
@output_option
@pass_cluster
def list_topics(cluster: Cluster, /, output: str) -> None:
    """List the topics; in JSON as a list of names."""
    with cluster.admin() as admin:
        names = admin.topics.read_topic_names()
        deleted = admin.topics.read_topics_being_deleted()
    if output == Output.JSON:
        print_json(names)
        return
    for name in names:
        click.echo(quoted(name) + (" - marked for deletion" if name in deleted else ""))
