"""``topics config``: what a topic overrides, shown and changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from regent.cli.find_cluster import Cluster, pass_cluster
from regent.cli.new_topics import parse_config
from regent.cli.output import Output, examples, note, output_option, print_json, print_table
from regent.cli.topic_options import TopicError, named, topic_argument
from regent.core.admin.topic_settings import TOPIC_SETTINGS, topic_config_problem
from regent.core.errors import BadDataError
from regent.zk.stores.admin_store import ZkAdminStore


@click.command(
    epilog=examples(
        "topics config payments",
        "topics config payments --set retention.ms=86400000 --set min.insync.replicas=2",
        "topics config payments --unset retention.ms",
    )
    + f"\n\nSettings: {', '.join(sorted(TOPIC_SETTINGS))}."
)
@topic_argument
@click.option("--set", "--config", "settings", metavar="NAME=VALUE", multiple=True, help="Set it.")
@click.option(
    "--unset", "--delete-config", "removed", metavar="NAME", multiple=True, help="Override no more."
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
    """Show what a topic overrides, after changing it if so told."""
    if name is None:
        raise click.UsageError("which topic? Give a name")
    changes = _changes(settings, removed)
    with cluster.admin() as admin:
        current = _read(admin, name)
        if changes:
            _check(name, current, changes)
            current = admin.configs.alter_topic_config(name, changes)
    if output == Output.JSON:
        print_json({"topic": name, "config": dict(sorted(current.items()))})
    elif current:
        print_table(["name", "value"], sorted(current.items()))
    else:
        note(f"topic {name} overrides nothing")


def _changes(settings: Sequence[str], removed: Sequence[str]) -> dict[str, str | None]:
    try:
        changes: dict[str, str | None] = {**parse_config(settings)}
    except ValueError as error:
        raise click.UsageError(f"--set {error}") from None
    for name in removed:
        if name in changes:
            raise click.UsageError(f"{name} is both set and unset, or unset twice")
        changes[name] = None
    return changes


def _read(admin: ZkAdminStore, topic: str) -> dict[str, str]:
    if not admin.topics.read_topics(named(topic)):
        raise TopicError(f"topic {topic} does not exist")
    current = admin.configs.read_topic_configs([topic])[topic]
    if isinstance(current, BadDataError):
        raise current
    return current


def _check(topic: str, current: Mapping[str, str], changes: Mapping[str, str | None]) -> None:
    problems = []
    for name, value in changes.items():
        if value is not None:
            problem = topic_config_problem(name, value)
        elif name not in current:
            overridden = ", ".join(sorted(current)) or "nothing"
            problem = f"is not overridden; overridden is {overridden}"
        else:
            problem = None
        problems += [f"topic {topic} config {name} {problem}"] if problem else []
    if problems:
        raise TopicError("\n".join(problems))
