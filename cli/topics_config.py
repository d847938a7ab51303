"""``topics config``: shows and changes the overrides of a topic."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import click

from regent.admin.cluster_connection import Cluster, pass_cluster
from regent.admin.topics import TopicsClient, raise_if_refused
from regent.cli.new_topics import parse_config
from regent.cli.output import Output, examples, note, output_option, print_json, print_table
from regent.cli.remote_actors import controller_of
from regent.cli.topic_options import TopicError, read_existing, topic_argument
from regent.core.admin.topic_settings import TOPIC_SETTINGS
from regent.core.errors import BadDataError
from regent.core.protocol.topics import AlterOperation, ConfigAlteration
from regent.zk.stores.admin_store import ZkAdminStore

_TIMEOUT_S = 30.0


@click.command(
    epilog=examples(
        "topics config payments",
        "topics config payments --set retention.ms=86400000 --set min.insync.replicas=2",
        "topics config payments --unset retention.ms",
    )
    + f"\n\nSettings: {', '.join(sorted(TOPIC_SETTINGS))}."
)
@topic_argument
@click.option(
    "--set", "--config", "settings", metavar="NAME=VALUE", multiple=True, help="Set an override."
)
@click.option(
    "--unset",
    "--delete-config",
    "removed",
    metavar="NAME",
    multiple=True,
    help="Remove an override.",
)
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
    changes = _changes(settings, removed)
    with cluster.admin() as admin:
        current = _read(admin, name)
        if changes:
            _check_removed(name, current, removed)
            with controller_of(admin) as controller:
                client = TopicsClient(controller, deadline=time.monotonic() + _TIMEOUT_S)
                raise_if_refused(client.configure(name, changes).outcomes)
            current = _read(admin, name)
    if output == Output.JSON:
        print_json({"topic": name, "config": dict(sorted(current.items()))})
    elif current:
        print_table(["name", "value"], sorted(current.items()))
    else:
        note(f"topic {name} overrides nothing")


def _changes(settings: Sequence[str], removed: Sequence[str]) -> list[ConfigAlteration]:
    try:
        values = parse_config(settings)
    except ValueError as error:
        raise click.UsageError(f"--set {error}") from None
    for name, count in Counter((*values, *removed)).items():
        if count > 1:
            raise click.UsageError(f"{name} is both set and unset, or unset twice")
    return [
        *(ConfigAlteration(name, AlterOperation.SET, value) for name, value in values.items()),
        *(ConfigAlteration(name, AlterOperation.DELETE) for name in removed),
    ]


def _read(admin: ZkAdminStore, topic: str) -> dict[str, str]:
    if not read_existing(admin, [topic]):
        raise TopicError(f"topic {topic} does not exist")
    current = admin.configs.read_topic_configs([topic])[topic]
    if isinstance(current, BadDataError):
        raise current
    return current


def _check_removed(topic: str, current: Mapping[str, str], removed: Sequence[str]) -> None:
    overridden = ", ".join(sorted(current)) or "none"
    problems = [
        f"topic {topic} config {name} is not overridden; the overrides are {overridden}"
        for name in removed
        if name not in current
    ]
    if problems:
        raise TopicError("\n".join(problems))
