"""``--watch``: shows something again and again until Ctrl-C; and names for shell completion."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from regent.cli.output import begin_documents
from regent.client.cluster_connection import cluster_admin, find_cluster, open_session
from regent.client.live_brokers import read_live_brokers
from regent.config.cluster_location import DATA_DIR
from regent.core.errors import RegentError
from regent.zk.stores.admin_store import ZkAdminStore

F = TypeVar("F", bound=Callable[..., Any])

_EVERY_S: Final = 2.0
_LEAST_S: Final = 0.1
_COMPLETION_S: Final = 2.0


def watch_option(command: F) -> F:
    """Add ``--watch [SECONDS]``, the argument ``watch_s``: None, or the time between two looks."""
    return click.option(
        "--watch",
        "watch_s",
        is_flag=False,
        flag_value=_EVERY_S,
        type=click.FloatRange(min=_LEAST_S),
        metavar="[SECONDS]",
        help="Show it again every 2 seconds, or as often as you say, until Ctrl-C.",
    )(command)


def watched(show: Callable[[], object], watch_s: float | None) -> None:
    """Call ``show`` once, or again and again; a failure is shown and does not end the watch.

    The times of JSON and YAML go to stderr: stdout has documents only.
    """
    if watch_s is None:
        show()
        return
    has_documents = begin_documents()
    try:
        while True:
            if sys.stdout.isatty():
                click.clear()
            click.echo(time.strftime("%Y-%m-%d %H:%M:%S"), err=has_documents)
            try:
                show()
            except RegentError as error:
                click.echo(f"regent: {error}", err=True)
            if not has_documents:
                click.echo()
            sys.stdout.flush()
            time.sleep(watch_s)
    except KeyboardInterrupt:
        return


def completing(
    names: Callable[[ZkAdminStore], list[str]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes the name of something in the cluster; nothing without a cluster."""

    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        zookeeper, data_dir = context.params.get("zookeeper"), context.params.get("data_dir")
        try:
            address = find_cluster(context, zookeeper, Path(data_dir or DATA_DIR))
            opened = context.find_root().obj or open_session
            with cluster_admin(address.zookeeper_address, _COMPLETION_S, opened) as admin:
                found = names(admin)
        except (RegentError, OSError):
            return []
        return [CompletionItem(name) for name in found if name.startswith(begun)]

    return complete


def _groups(admin: ZkAdminStore) -> list[str]:
    from regent.client.command_config import SECURITY_OF_COMMAND
    from regent.client.group_states import group_names

    registered = read_live_brokers(admin).values()
    endpoints = [e for r in registered if (e := SECURITY_OF_COMMAND.endpoint_of(r.info))]
    return group_names(endpoints, _COMPLETION_S)


complete_groups = completing(_groups)
complete_topics = completing(lambda admin: admin.topics.read_topic_names())
complete_brokers = completing(lambda admin: [str(broker) for broker in admin.read_brokers()])
