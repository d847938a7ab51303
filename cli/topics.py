"""``topics``: the group of commands, and ``list``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click

from regent.cli.lazy_group import LazyCommand, LazyGroup
from regent.cli.output import (
    Output,
    examples,
    note,
    output_option,
    print_json,
    print_table,
    quoted,
)
from regent.client.cluster_connection import Cluster, as_named, bootstrap_option, pass_cluster
from regent.client.live_brokers import read_live_brokers
from regent.core.errors import BadDataError
from regent.core.quantities import bytes_text
from regent.zk.stores.admin_store import ZkAdminStore

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


@click.command("list", epilog=examples("topics list", "topics list --names -o json"))
@click.option("--names", "names_only", is_flag=True, help="Only the names, also in JSON.")
@output_option
@bootstrap_option
@pass_cluster
def list_topics(cluster: Cluster, /, names_only: bool, output: str) -> None:
    """List the topics: partitions, replicas of a partition, and the bytes of all replicas.

    Brokers tell the bytes: "-" if none of those that have replicas does. --names asks ZooKeeper
    alone, or with --bootstrap-server brokers.
    """
    with as_named(cluster).admin() as admin:
        names = admin.topics.read_topic_names()
        deleted = admin.topics.read_topics_being_deleted()
        rows = [] if names_only else _rows(admin, names, deleted)
    if not names_only:
        _print_rows(rows, output)
    elif output == Output.JSON:
        print_json(names)
    else:
        for name in names:
            click.echo(quoted(name) + (" - marked for deletion" if name in deleted else ""))


def _rows(
    admin: ZkAdminStore, names: Sequence[str], deleted: Collection[str]
) -> list[dict[str, Any]]:
    from regent.client.log_sizes import read_log_dirs

    found = admin.topics.read_topics(names)
    sizes: Counter[str] = Counter()
    for directories in (read_log_dirs(read_live_brokers(admin)) if found else {}).values():
        for directory in directories:
            for log in directory.logs:
                sizes[log.topic] += log.size
    rows: list[dict[str, Any]] = []
    for name, topic in found.items():
        if isinstance(topic, BadDataError):
            note(f"regent: {topic}")
            continue
        rows.append(
            {
                "topic": name,
                "partitions": len(topic.partitions),
                "replicas": sorted({len(a.replicas) for a in topic.partitions.values()}),
                "bytes": sizes.get(name),
                "is_being_deleted": name in deleted,
            }
        )
    return rows


def _print_rows(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    if output == Output.JSON:
        print_json(rows)
        return
    cells = [
        (
            *(quoted(row["topic"]), row["partitions"], row["replicas"]),
            None if row["bytes"] is None else bytes_text(row["bytes"]),
            "marked for deletion" if row["is_being_deleted"] else None,
        )
        for row in rows
    ]
    columns = ("topic", "partitions", "replicas", "bytes", "state")
    width = len(columns) if any(row["is_being_deleted"] for row in rows) else len(columns) - 1
    print_table(columns[:width], [row[:width] for row in cells])
