"""``topics``: the group of commands, and ``list``."""

from __future__ import annotations

from collections import Counter

import click

from regent.cli.lazy_group import LazyCommand, LazyGroup
from regent.cli.output import Output, note, output_option, print_json, print_table, quoted
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.live_brokers import read_live_brokers
from regent.core.errors import BadDataError
from regent.core.quantities import bytes_text

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
    "undelete": LazyCommand(
        "regent.cli.topics_undelete", "undelete_topic", "Bring a deleted topic back."
    ),
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
    """List the topics; in JSON as a list of names.

    With -o wide: partitions, replicas of a partition, and the bytes of all replicas.
    """
    if output == Output.WIDE:
        _print_wide(cluster)
        return
    with cluster.admin() as admin:
        names = admin.topics.read_topic_names()
        deleted = admin.topics.read_topics_being_deleted()
    if output == Output.JSON:
        print_json(names)
        return
    for name in names:
        click.echo(quoted(name) + (" - marked for deletion" if name in deleted else ""))


def _print_wide(cluster: Cluster) -> None:
    from regent.client.log_sizes import read_log_dirs

    with cluster.admin() as admin:
        found = admin.topics.read_topics(admin.topics.read_topic_names())
        live = read_live_brokers(admin)
    sizes: Counter[str] = Counter()
    for directories in read_log_dirs(live).values():
        for directory in directories:
            for log in directory.logs:
                sizes[log.topic] += log.size
    rows: list[tuple[object, ...]] = []
    for name, topic in found.items():
        if isinstance(topic, BadDataError):
            note(f"regent: {topic}")
            continue
        counts = sorted({len(a.replicas) for a in topic.partitions.values()})
        rows.append((quoted(name), len(topic.partitions), counts, bytes_text(sizes[name])))
    print_table(("topic", "partitions", "replicas", "bytes"), rows)
