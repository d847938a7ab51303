"""``topics config``: shows and changes the overrides of a topic."""

from __future__ import annotations

from collections.abc import Sequence

import click

from regent.cli.config_options import changes_options, check_removed, config_changes, show_config
from regent.cli.output import examples, output_option
from regent.cli.topic_options import TopicError, read_existing, topic_argument, topics_client
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.topics import raise_if_refused
from regent.core.admin.config_problems import unusable_in_topic
from regent.core.admin.topic_settings import TOPIC_SETTINGS
from regent.core.errors import BadDataError
from regent.zk.stores.admin_store import ZkAdminStore

_TIMEOUT_MS = 30_000


@click.command(
    epilog=examples(
        "topics config payments",
        "topics config payments --set retention.ms=86400000 --set min.insync.replicas=2",
        "topics config payments --unset retention.ms",
    )
    + f"\n\nSettings: {', '.join(sorted(TOPIC_SETTINGS))}."
)
@topic_argument
@changes_options
@output_option
@pass_cluster
def config(
    cluster: Cluster,
    /,
    name: str | None,
    settings: Sequence[str],
    removed: Sequence[str],
    output: str,
) -> None:
    """Change the overrides of a topic, and show them."""
    if name is None:
        raise click.UsageError("which topic? Give a name")
    changes = config_changes(settings, removed)
    with cluster.admin() as admin:
        current = _read(admin, name)
        if changes:
            check_removed(f"topic {name}", current, removed)
            client = topics_client(cluster, _TIMEOUT_MS)
            raise_if_refused(client.configure(name, changes).responses)
            current = _read(admin, name)
    show_config("topic", name, current, unusable_in_topic(current), output)


def _read(admin: ZkAdminStore, topic: str) -> dict[str, str]:
    if not read_existing(admin, [topic]):
        raise TopicError(f"topic {topic} does not exist")
    current = admin.configs.read_topic_configs([topic])[topic]
    if isinstance(current, BadDataError):
        raise current
    return current
