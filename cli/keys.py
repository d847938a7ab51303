"""``keys``: the keys of brokers and operators for control requests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, note, output_option, print_json, print_table
from regent.config.cluster_location import (
    CLUSTER_FILE,
    DATA_DIR,
    DATA_DIR_VARIABLE,
    KEYS_VARIABLE,
)
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.security.roles import KeyOwner
from regent.transport.control.key_files import (
    BROKER_SECRET,
    KeysDirectory,
    keys_folder,
    make_secret,
    new_key_pair,
    read_secret,
)

_COLUMNS: Final = ("name", "role", "public_key")


@click.group(cls=HelpfulGroup)
def keys() -> None:
    """Make, show, allow, revoke and replace keys for control requests.

    Brokers and commands prove to each other who they are. On one machine there is nothing to do:
    keys are made at the first start, in the folder keys of the data directory. A broker on another
    machine needs the public key of each one who sends it commands: `keys allow` there.
    """


def _directory_option(command: click.decorators.FC) -> click.decorators.FC:
    """Add ``--keys`` and ``--data-dir``."""
    data_dir = click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=DATA_DIR,
        show_default=True,
        envvar=DATA_DIR_VARIABLE,
        show_envvar=True,
        help="The data folder of a cluster or of a broker.",
    )
    directory = click.option(
        "--keys",
        "keys_dir",
        type=click.Path(path_type=Path, file_okay=False),
        envvar=KEYS_VARIABLE,
        show_envvar=True,
        help="The folder of keys; default: keys beside a broker's --data-dir if there is such a"
        " folder, else in --data-dir.",
    )
    return directory(data_dir(command))


def _directory(keys_dir: Path | None, data_dir: Path) -> KeysDirectory:
    return KeysDirectory(keys_dir or keys_folder(data_dir))


@keys.command(epilog=examples("keys make --keys ~/regent-keys"))
@_directory_option
def make(keys_dir: Path | None, data_dir: Path) -> None:
    """Make a key for the commands of this machine, and print its public key.

    A key that exists is kept.
    """
    click.echo(_directory(keys_dir, data_dir).make_operator().public)


@keys.command(epilog=examples("keys show", "keys show -o json"))
@_directory_option
@output_option
def show(keys_dir: Path | None, data_dir: Path, output: str) -> None:
    """List the public keys that are allowed, what their owners are, and the revoked ones."""
    directory = _directory(keys_dir, data_dir)
    rows = [
        {"name": name, "role": _role(name), "public_key": key}
        for name, allowed in directory.allowed().items()
        for key in allowed
    ]
    revoked = directory.revoked().items()
    rows += [{"name": name, "role": "revoked", "public_key": key} for key, name in revoked]
    if output == Output.JSON:
        print_json(rows)
    else:
        print_table([c.replace("_", " ") for c in _COLUMNS], [tuple(r.values()) for r in rows])


@keys.command(epilog=examples("keys allow alice PUBLIC_KEY", "keys allow broker-2 PUBLIC_KEY"))
@click.argument("name")
@click.argument("public_key")
@_directory_option
def allow(name: str, public_key: str, keys_dir: Path | None, data_dir: Path) -> None:
    """Allow the owner of a public key to send control requests to the brokers here.

    The name broker-N allows broker N; every other name is an operator's. Earlier keys of the name
    stay allowed, until they are revoked. Running brokers need no restart.
    """
    directory = _directory(keys_dir, data_dir)
    directory.allow(name, *directory.allowed().get(name, []), public_key.lower())
    click.echo(f"{name} is allowed as {_role(name)}: {directory.file_of(name)}")
    if keys_dir is None and not _is_used(data_dir):
        note(
            f"{data_dir} is not the data folder of a cluster or a broker, so nobody reads"
            f" {directory.path} before a broker starts with --data-dir {data_dir}"
        )


@keys.command(epilog=examples("keys revoke alice", "keys revoke broker-2 PUBLIC_KEY"))
@click.argument("name")
@click.argument("public_key", required=False)
@_directory_option
def revoke(name: str, public_key: str | None, keys_dir: Path | None, data_dir: Path) -> None:
    """Allow a name no more, or one of its keys; its connections are closed.

    A revoked key is never believed again where this folder is used, also not if a broker registers
    it. Do this on the machine of each broker; where no broker reads the folder, nothing is revoked.
    Without PUBLIC_KEY no other key of the broker is believed either before `keys allow`. A broker
    whose own key is revoked ends: replace it with `keys rotate --broker`, and start the broker
    again.
    """
    directory = _directory(keys_dir, data_dir)
    allowed, earlier = directory.allowed(), directory.revoked()
    # A broker allows its own key where it reads those of others.
    has_brokers = any(_role(one) == "broker" for one in (*allowed, *earlier.values()))
    if not has_brokers or (keys_dir is None and not _is_used(data_dir)):
        where = "the data folder of the cluster or broker with --data-dir, or its keys with --keys"
        if keys_dir is not None:
            where = f"another one with --keys or {KEYS_VARIABLE}, which --data-dir does not change"
        raise RegentError(f"nothing is revoked: no broker reads {directory.path}: name {where}")
    key = public_key and public_key.lower()
    revoked = directory.revoke(name, key)
    left = directory.allowed().get(name)
    click.echo(f"{name}: {revoked} revoked, {len(left or ())} still allowed.")
    if key is not None and key not in allowed.get(name, ()) and earlier.get(key) != name:
        others = [one for one, its in allowed.items() if key in its]
        whose = f"is that of {', '.join(others)}" if others else "was not known here"
        note(f"the key {key} {whose}: nobody can use it here any more, but is it the right one?")
    if left == []:
        note(
            f"{name} is believed again after `{program()} keys allow {name} NEW_KEY`, or after its"
            " start with a new key if it uses this folder"
        )


@keys.command(epilog=examples("keys rotate", "keys rotate --broker data/broker-2"))
@click.option(
    "--broker",
    "broker_dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Replace the key of the broker with this data folder, not that of commands.",
)
@_directory_option
def rotate(broker_dir: Path | None, keys_dir: Path | None, data_dir: Path) -> None:
    """Replace a key by a new one, and print its public key.

    A broker uses its new key from its next start: restart one after another. Where the brokers have
    their keys from the folder of keys, the new key is allowed here beside the old one until the
    broker has started with it; on other machines `keys allow broker-N` first.
    """
    directory = _directory(keys_dir, data_dir)
    if broker_dir is None:
        click.echo(directory.make_operator(replace=True).public)
        return
    path = broker_dir / BROKER_SECRET
    old, new = read_secret(path).public, new_key_pair()
    named = {name: keys for name, keys in directory.allowed().items() if old in keys}
    for name, allowed in named.items():  # first: who repeats this after an error has the old key
        directory.allow(name, *allowed, new.public)
    make_secret(path, replace=True, made=new)
    if not named:
        note(
            f"{directory.path} did not allow the old key: where brokers have their keys from such a"
            f" folder, allow the new one there with `{program()} keys allow broker-N {new.public}`"
        )
    click.echo(new.public)


def _is_used(data_dir: Path) -> bool:
    """Whether a cluster or a broker has this data folder."""
    return any((data_dir / file).exists() for file in (CLUSTER_FILE, BROKER_SECRET))


def _role(name: str) -> str:
    return "operator" if KeyOwner.named(name).broker_id is None else "broker"
