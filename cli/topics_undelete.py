"""``topics undelete``: brings a deleted topic back, or lists those that can come back."""

from __future__ import annotations

from collections.abc import Sequence

import click

from regent.cli.output import Output, examples, output_option, print_json, print_table, quoted
from regent.cli.remote_actors import actor_at, controller_of
from regent.cli.topic_options import topic_argument
from regent.cli.waiting import timeout_option
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.undeletion import (
    deleted_topic,
    undeletable_topics,
    undelete,
)
from regent.client.wording import counted, moment_text
from regent.core.ports import DeletedTopic


@click.command("undelete", epilog=examples("topics undelete", "topics undelete payments"))
@topic_argument
@click.option(
    "--topic-id",
    metavar="ID",
    help="Which topic, if several of the name were deleted.  [default: the last]",
)
@click.option("--dry-run", is_flag=True, help="Show what would come back, and ask no broker.")
@timeout_option("Time to wait until every partition has a leader.")
@output_option
@pass_cluster
def undelete_topic(
    cluster: Cluster,
    /,
    name: str | None,
    topic_id: str | None,
    dry_run: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Bring a deleted topic back with its records, its id, its replicas and its settings.

    That is possible until the brokers delete the files: log.segment.delete.delay.ms after the
    deletion, a minute by default. Without a name, lists the topics that can come back. The
    positions of groups in the topic do not come back.
    """
    with cluster.admin() as admin:
        if name is None:
            _list(undeletable_topics(admin), output)
            return
        if dry_run:
            _show(deleted_topic(admin, name, topic_id), output)
            return
        with controller_of(admin) as controller:
            deleted = undelete(
                admin, controller, actor_at, name, topic_id, timeout_s=timeout_ms / 1000
            )
    if output == Output.JSON:
        print_json({**_json(deleted), "undeleted": True})
    else:
        click.echo(f"Topic {name} is back ({counted(len(deleted.partitions), 'partition')}).")


def _show(deleted: DeletedTopic, output: str) -> None:
    """Show what would come back; only the brokers know whether they still have the files."""
    if output == Output.JSON:
        print_json({**_json(deleted), "undeleted": False})
        return
    partitions, until = counted(len(deleted.partitions), "partition"), moment_text(deleted.until_ms)
    click.echo(f"Topic {deleted.topic} ({partitions}) can come back until {until}.")


def _list(topics: Sequence[DeletedTopic], output: str) -> None:
    if output == Output.JSON:
        print_json(list(map(_json, topics)))
        return
    rows = [
        (
            *(quoted(deleted.topic), deleted.topic_id, len(deleted.partitions)),
            *(moment_text(deleted.deleted_ms), moment_text(deleted.until_ms)),
        )
        for deleted in topics
    ]
    print_table(("topic", "topic id", "partitions", "deleted", "can come back until"), rows)


def _json(deleted: DeletedTopic) -> dict[str, object]:
    return {
        "topic": deleted.topic,
        "topic_id": deleted.topic_id,
        "partitions": len(deleted.partitions),
        "deleted_ms": deleted.deleted_ms,
        "until_ms": deleted.until_ms,
    }
