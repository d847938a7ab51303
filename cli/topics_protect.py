"""``topics protect`` and ``topics unprotect``: whether topics can be deleted."""

from __future__ import annotations

from collections.abc import Sequence

import click

from regent.cli.output import examples
from regent.cli.topic_options import refuse_empty, topics_client
from regent.cli.watching import complete_topics
from regent.client.cluster_connection import Cluster, bootstrap_option, pass_cluster
from regent.client.topics import raise_if_refused
from regent.core.admin.topic_settings import DELETION_PROTECTION
from regent.core.protocol.messages.configs import AlterableConfig, AlterOperation

_TIMEOUT_MS = 30_000


@click.command(epilog=examples("topics protect payments audit"))
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@bootstrap_option
@pass_cluster
def protect(cluster: Cluster, /, names: Sequence[str]) -> None:
    """Protect topics: brokers refuse the requests of all clients to delete them.

    The setting regent.deletion.protection of the topic says so. To refuse the deletion of all
    topics: `brokers config --default --set delete.topic.enable=false`.
    """
    change = AlterableConfig(
        name=DELETION_PROTECTION, config_operation=AlterOperation.SET, value="true"
    )
    _change(cluster, names, change, "is protected: it cannot be deleted")


@click.command(epilog=examples("topics unprotect payments"))
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@bootstrap_option
@pass_cluster
def unprotect(cluster: Cluster, /, names: Sequence[str]) -> None:
    """Take the protection of topics away: they can be deleted again."""
    change = AlterableConfig(
        name=DELETION_PROTECTION, config_operation=AlterOperation.DELETE, value=None
    )
    _change(cluster, names, change, "is not protected: it can be deleted")


def _change(cluster: Cluster, names: Sequence[str], change: AlterableConfig, became: str) -> None:
    refuse_empty(*names)
    client = topics_client(cluster, _TIMEOUT_MS)
    for name in dict.fromkeys(names):
        raise_if_refused(client.configure(name, [change]).responses)
        click.echo(f"Topic {name} {became}.")
