"""``users``: who may log in to brokers, and with which password."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, output_option, print_json, print_table
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.core.errors import BadDataError, RegentError
from regent.core.quota.quota_entities import QuotaEntity, entity_of
from regent.core.security.plain import hashed
from regent.core.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramMechanism,
    derive,
    parsed_credential,
)
from regent.transport.kafka.sasl_client import one_line, random_text

_COLUMNS: Final = ("user", "mechanism", "iterations")
_SALT_BYTES: Final = 16


class UserError(RegentError):
    """A user that cannot be made or removed."""


@click.group(cls=HelpfulGroup)
def users() -> None:
    """Add, list and remove users of listeners with SASL.

    Passwords are kept in ZooKeeper as SCRAM credentials, as kafka-configs.sh writes them. No
    broker needs to run: add the users broker-N, with which brokers log in to each other, before
    their first start. Running brokers follow.
    """


_password_option = click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the password, one line, of mode 0600; default: ask for it.",
)
_mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice([mechanism.value for mechanism in ScramMechanism]),
    multiple=True,
    help="Only this mechanism; may be repeated. Default: all.",
)


@users.command(epilog=examples("users add alice", "users add broker-1 --password-file b1.password"))
@click.argument("name")
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="How often the password is hashed.",
)
@_password_option
@pass_cluster
def add(
    cluster: Cluster,
    /,
    name: str,
    mechanisms: Sequence[str],
    iterations: int,
    password_file: Path | None,
) -> None:
    """Add a user, or give it another password.

    Connections that are logged in stay.
    """
    if not (name.isascii() and name.isprintable()) or not name:
        raise UserError(f"the name of a user must have printable ASCII characters: {name!r}")
    password = _password(name, password_file)
    chosen = [ScramMechanism(m) for m in mechanisms] or list(ScramMechanism)
    credentials = {
        mechanism.value: derive(mechanism, password, random_text().encode(), iterations).text
        for mechanism in chosen
    }
    with cluster.admin() as admin:
        admin.configs.change_config(QuotaEntity(user=name).path, lambda _: credentials)
    click.echo(f"{name} may log in with {' and '.join(credentials)}.")


@users.command("list", epilog=examples("users list", "users list -o json"))
@output_option
@pass_cluster
def list_users(cluster: Cluster, /, output: str) -> None:
    """List the users with a password, without the passwords."""
    with cluster.admin() as admin:
        admin.configs.check_listed()
        configs = admin.configs.read_client_quotas()
    rows = []
    for path, config in sorted(configs.items()):
        entity = entity_of(path)
        if entity is None or entity.user is None or entity.client_id is not None:
            continue
        for mechanism in ScramMechanism:
            if mechanism.value not in config:
                continue
            try:
                credential = parsed_credential(mechanism, config[mechanism.value])
                iterations: int | None = credential.iterations
            except BadDataError:
                iterations = None
            rows.append(
                dict(zip(_COLUMNS, (entity.user, mechanism.value, iterations), strict=True))
            )
    if output == Output.JSON:
        print_json(rows)
    else:
        shown = [[*list(row.values())[:2], row["iterations"] or "damaged"] for row in rows]
        print_table(_COLUMNS, shown)


@users.command(
    epilog=examples("users remove alice", "users remove alice --mechanism SCRAM-SHA-256")
)
@click.argument("name")
@_mechanism_option
@pass_cluster
def remove(cluster: Cluster, /, name: str, mechanisms: Sequence[str]) -> None:
    """Remove the password of a user. Its quotas, and connections that are logged in, stay."""
    asked: Collection[str] = mechanisms or [mechanism.value for mechanism in ScramMechanism]
    removed: set[str] = set()

    def change(present: dict[str, str]) -> dict[str, str | None]:
        found = [mechanism for mechanism in asked if mechanism in present]
        removed.update(found)  # a decision whose answer was lost counts too
        return dict.fromkeys(found)

    with cluster.admin() as admin:
        admin.configs.change_config(QuotaEntity(user=name).path, lambda p: change(dict(p)))
    if not removed:
        raise UserError(f"the user {name} has no such password: see `users list`")
    click.echo(f"{name} may no longer log in with {' and '.join(sorted(removed))}.")


@users.command(epilog=examples("users line alice >> plain.users"))
@click.argument("name")
@_password_option
def line(name: str, password_file: Path | None) -> None:
    """Print the line of a user for the file of PLAIN (setting sasl_plain_users_file).

    Its password is hashed. The file must have mode 0600.
    """
    if not name or ":" in name or "\0" in name or not name.isprintable():
        raise UserError(f"the name of a user must be printable, without a colon: {name!r}")
    password = _password(name, password_file)
    click.echo(f"{name}:{hashed(password, secrets.token_bytes(_SALT_BYTES)).text}")


def _password(name: str, file: Path | None) -> str:
    if file is None:
        password: str = click.prompt(
            f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
        return password
    return one_line(file, f"the password of {name}")
