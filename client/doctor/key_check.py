"""Whose keys the brokers allow, how old the keys are, and whether ZooKeeper can be believed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.wording import counted, listed
from regent.config.cluster_location import KEYS_OF_COMMAND
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.security.roles import KeyOwner
from regent.transport.control.key_files import (
    BROKER_SECRET,
    OPERATOR,
    PLACEMENT_SECRET,
    KeysDirectory,
    keys_folder,
    read_secret,
)

KEYS: Final = "keys"
"""The name of this check."""

_DAY_S: Final = 86_400
_MAX_AGE_DAYS: Final = 365
_BROKER_KEYS: Final = "regent.broker.keys"


def check_keys(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Check the keys of this machine, those that are allowed, and how brokers are believed."""
    yield from _believed(cluster)
    given = KEYS_OF_COMMAND.given
    path = given or (None if cluster.folder is None else keys_folder(cluster.folder))
    if path is not None and path.is_dir():
        directory = KeysDirectory(path)
        yield from _secrets(cluster, directory)
        yield from _allowed(cluster, directory)


def _finding(severity: Severity, subject: str, message: str, remedy: str = "") -> Finding:
    return Finding(KEYS, severity, subject, message, remedy)


def _believed(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Yield a finding for the brokers that believe registrations which everybody may write."""
    if not cluster.is_zookeeper_open:
        return
    believing = [
        broker_id
        for broker_id, settings in sorted(cluster.settings.items())
        if settings.get(_BROKER_KEYS) == "registered"
    ]
    if believing:
        brokers = f"{'broker' if len(believing) == 1 else 'brokers'} {listed(believing)}"
        message = (
            f'{brokers} with broker_keys = "registered" and a ZooKeeper without login: who may'
            " write a registration there is a broker"
        )
        remedy = f'give ZooKeeper a login, or set broker_keys = "allowed" and `{program()} keys'
        yield _finding(Severity.PROBLEM, brokers, message, f"{remedy} allow broker-N KEY`")


# --- secret keys ---------------------------------------------------------------------------------


def _secrets(cluster: ExaminedCluster, directory: KeysDirectory) -> Iterator[Finding]:
    """Yield the age of each secret key on this machine."""
    where = f"--keys {directory.path}"
    remedies = {
        directory.path / f"{OPERATOR}.secret": (
            "of commands",
            f"`{program()} keys rotate {where}`",
        ),
        directory.path / PLACEMENT_SECRET: (
            "of the placement service",
            "remove the file and start the cluster again",
        ),
    }
    for path in sorted(() if cluster.folder is None else cluster.folder.glob("*/" + BROKER_SECRET)):
        rotate = f"`{program()} keys rotate --broker {path.parent} {where}`, then restart it"
        remedies[path] = f"of {path.parent.name.replace('-', ' ')}", rotate
    for path, (whose, remedy) in remedies.items():
        if (days := _age_days(path)) is None:
            continue
        message = f"the key {whose} ({path}) is {counted(days, 'day')} old"
        if days > _MAX_AGE_DAYS:
            older = f"{message}: everybody who has copied it since then may still use it"
            yield _finding(Severity.WARNING, str(path), older, remedy)
        else:
            yield _finding(Severity.OK, str(path), message)


def _age_days(path: Path) -> int | None:
    """Return for how many days a file is as it is; None if there is none."""
    try:
        return max(0, int((time.time() - path.stat().st_mtime) // _DAY_S))
    except OSError:
        return None


# --- allowed keys --------------------------------------------------------------------------------


def _allowed(cluster: ExaminedCluster, directory: KeysDirectory) -> Iterator[Finding]:
    own = _own_operator(directory)
    for name, keys in directory.allowed().items():
        owner = KeyOwner.named(name)
        if owner.broker_id is not None:
            yield from _of_broker(cluster, directory, owner, keys)
            continue
        days = _age_days(directory.file_of(name))
        message = f"{name} may send requests of operators, with {counted(len(keys), 'key')}"
        if days is None or days <= _MAX_AGE_DAYS or own in keys:  # of ours the secret has the age
            yield _finding(Severity.OK, name, message)
            continue
        message = f"{message}, since {counted(days, 'day')}"
        remedy = f"`{program()} keys allow {name} NEW_KEY`, then `{program()} keys revoke {name}"
        yield _finding(Severity.WARNING, name, message, f"{remedy} OLD_KEY`")


def _own_operator(directory: KeysDirectory) -> str | None:
    try:
        return directory.operator().public
    except RegentError:
        return None  # it is on another machine, or ``files`` says what is wrong with it


def _of_broker(
    cluster: ExaminedCluster, directory: KeysDirectory, owner: KeyOwner, keys: list[str]
) -> Iterator[Finding]:
    """Yield a finding for keys that the broker has not."""
    if cluster.registrations is None:
        return
    assert owner.broker_id is not None
    revoke = f"{program()} keys revoke {owner.name}"
    where = f"--keys {directory.path}"
    listed_brokers = {} if cluster.file is None else cluster.file.brokers
    info = cluster.registrations.get(owner.broker_id)
    if info is None:
        if keys and owner.broker_id not in listed_brokers:
            message = f"{owner.name} is allowed, and no broker has this id"
            remedy = f"`{revoke} {where}` if it does not come back"
            yield _finding(Severity.WARNING, owner.name, message, remedy)
        return
    unused = {key for key in keys if key != info.control_key} - {_next_key(cluster, owner)}
    for key in sorted(unused) if info.control_key in keys else ():
        message = f"{owner.name} is allowed with the key {key}, which the broker does not use"
        remedy = f"`{revoke} {key} {where}`"
        yield _finding(Severity.WARNING, owner.name, message, remedy)


def _next_key(cluster: ExaminedCluster, owner: KeyOwner) -> str | None:
    """Return the key that a broker of this machine has from its next start on."""
    if cluster.folder is None:
        return None
    try:
        return read_secret(cluster.folder / owner.name / BROKER_SECRET).public
    except RegentError:
        return None
