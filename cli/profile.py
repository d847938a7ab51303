"""``profile``: names for clusters, for commands on any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, output_option, print_json, print_table
from regent.client.profiles import NAMES_A_CLUSTER, Profile, Profiles

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS: Final = ("name", "used", "zookeeper", "bootstrap_server", "data_dir", "keys")


@click.group(cls=HelpfulGroup)
def profile() -> None:
    """Add, list, use and remove profiles: names for clusters.

    Commands take where their cluster is from the profile of --profile, of REGENT_PROFILE, or of
    `profile use`, in this order, unless another option or variable names a cluster. The file of
    profiles is private and has no secrets, only the paths of their files.
    """


def _path_option(name: str, text: str) -> Callable[[F], F]:
    return click.option(
        name, type=click.Path(path_type=Path, resolve_path=True, exists=True), help=text
    )


@profile.command(
    epilog=examples(
        "profile add prod --zookeeper zk1:2181,zk2:2181/kafka --keys ~/regent-keys",
        "profile add test --bootstrap-server b1:9092,b2:9092 --command-config client.properties",
    )
)
@click.argument("name")
@click.option("--zookeeper", metavar="HOST:PORT[/chroot]", help="ZooKeeper of the cluster.")
@click.option("--bootstrap-server", metavar="HOST:PORT[,…]", help="Some of its brokers.")
@_path_option("--data-dir", "Folder of a cluster on this machine.")
@_path_option("--keys", "Folder with our key, for control requests to brokers.")
@_path_option("--command-config", "File of properties with which to connect to brokers.")
@_path_option("--zookeeper-secret", "File with our login at ZooKeeper.")
def add(name: str, **options: str | Path | None) -> None:
    """Add a profile."""
    if not any(options[field] for field in NAMES_A_CLUSTER):
        raise click.UsageError("a profile needs --zookeeper, --bootstrap-server or --data-dir")
    values = {field: str(value) for field, value in options.items() if value}
    Profiles.read().with_profile(name, Profile(**values)).write()
    click.echo(f"Added profile {name}.")


@profile.command("list", epilog=examples("profile list", "profile list -o json"))
@output_option
def list_profiles(output: str) -> None:
    """List the profiles."""
    found = Profiles.read()
    rows = [
        {"name": name, "used": name == found.used, **asdict(row)}
        for name, row in sorted(found.by_name.items())
    ]
    if output == Output.JSON:
        print_json(rows)
        return
    shown = [{**row, "used": "yes" if row["used"] else "no"} for row in rows]
    print_table(
        [column.replace("_", " ") for column in _COLUMNS],
        [tuple(row[column] or None for column in _COLUMNS) for row in shown],
    )


@profile.command(epilog=examples("profile use prod", "profile use --none"))
@click.argument("name", required=False)
@click.option("--none", "is_none", is_flag=True, help="Use none: commands look in ./data again.")
def use(name: str | None, is_none: bool) -> None:
    """Use a profile where nothing else names a cluster."""
    if (name is None) is not is_none:
        raise click.UsageError("give the name of a profile, or --none")
    Profiles.read().using(name or "").write()
    click.echo(f"Commands use the profile {name}." if name else "Commands use no profile.")


@profile.command(epilog=examples("profile remove prod"))
@click.argument("name")
def remove(name: str) -> None:
    """Remove a profile. The files that it names stay."""
    Profiles.read().without(name).write()
    click.echo(f"Removed profile {name}.")
