"""What strangers may do with ZooKeeper's znodes, and what its servers tell them."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.listener_check import is_loopback
from regent.client.wording import how_many, listed
from regent.config.command_line import program
from regent.zk.client.login import Acl, Login, acl_of, login_at
from regent.zk.client.operations import AclEntry, Permission

ZOOKEEPER: Final = "zookeeper"
"""The name of this check."""

_FIRST_NAMES: Final = 2  # of a path: znodes below them are one group
_NAMED: Final = 3
_WORDS: Final = ("conf", "cons", "dump", "envi", "mntr", "stat", "wchp")
_NOT_ALLOWED: Final = b"is not executed because it is not in the whitelist"
_WORD_LIMIT_S: Final = 2.0
_DEFAULT_PORT: Final = 2181
_MAX_ANSWER_BYTES: Final = 4096


def check_zookeeper(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Check the ACLs of all znodes, and the servers' four-letter words."""
    if cluster.acls is None:
        return  # it is reported that ZooKeeper does not answer
    remedy = _remedy(cluster)
    if cluster.is_zookeeper_open:
        message = (
            f"ZooKeeper at {cluster.zookeeper} has no login: every client that can connect may"
            f" change {how_many(len(cluster.acls), 'znode', 'znodes')}, make itself the controller,"
            " and delete every topic"
        )
        yield _finding(Severity.PROBLEM, cluster.zookeeper, message, _how_to_log_in(cluster))
    else:
        yield from _opened(cluster, remedy)
    yield from _readable_secrets(cluster, remedy)
    yield from _servers(cluster)


def _finding(severity: Severity, subject: str, message: str, remedy: str = "") -> Finding:
    return Finding(ZOOKEEPER, severity, subject, message, remedy)


def _how_to_log_in(cluster: ExaminedCluster) -> str:
    if cluster.file is not None and cluster.file.zookeeper_nodes:
        return f"start `{program()} cluster` without --no-zookeeper-login"
    return f"set secret_file for all brokers, then {_secure(cluster)}"


def _remedy(cluster: ExaminedCluster) -> str:
    return f"run {_secure(cluster)}"


def _secure(cluster: ExaminedCluster) -> str:
    secret = "FILE"
    if cluster.data_dir is not None:
        secret = str(cluster.data_dir / "zookeeper.secret")
    return (
        f"`{program()} zookeeper acl secure --zookeeper {cluster.zookeeper} --secret-file {secret}`"
    )


# --- ACLs ----------------------------------------------------------------------------------------


def _opened(cluster: ExaminedCluster, remedy: str) -> Iterator[Finding]:
    """Yield a finding for each group of znodes that somebody else may change."""
    open_paths, of_others = [], defaultdict(list)
    login = login_at(cluster.zookeeper)
    for path, acl in cluster.acls or ():
        if acl_of(path) is not Acl.OPEN and _everybody_may(acl) & Permission.changes():
            open_paths.append(path)
        for other in _others(acl, login):
            of_others[other].append(path)
    for group, paths in _grouped(open_paths).items():
        # Clients of Kafka 0.8 create what is in /consumers, without a login.
        severity = Severity.WARNING if group.startswith("/consumers") else Severity.PROBLEM
        message = f"everybody who can connect to ZooKeeper may change {_named(group, paths)}"
        yield _finding(severity, group, message, remedy)
    for other, changeable in of_others.items():
        for group, paths in _grouped(changeable).items():
            message = f"{other}, which is not the cluster's login, may change"
            yield _finding(Severity.WARNING, group, f"{message} {_named(group, paths)}", remedy)
    if not open_paths and not of_others:
        count = how_many(len(cluster.acls or ()), "znode", "znodes")
        who = "the cluster's login" if login is not None else "its owner"
        message = f"only {who} may change {count} of ZooKeeper at {cluster.zookeeper}"
        yield _finding(Severity.OK, cluster.zookeeper, message)


def _readable_secrets(cluster: ExaminedCluster, remedy: str) -> Iterator[Finding]:
    readable = [
        path
        for path, acl in cluster.acls or ()
        if acl_of(path) is Acl.SENSITIVE and _everybody_may(acl) & Permission.READ
    ]
    severity = Severity.PROBLEM
    if cluster.is_zookeeper_open:
        remedy = _how_to_log_in(cluster)
    for group, paths in _grouped(readable).items():
        what = "passwords of users, settings of brokers or tokens"
        message = f"everybody who can connect to ZooKeeper may read {_named(group, paths)}: {what}"
        yield _finding(severity, group, message, remedy)


def _everybody_may(acl: Iterable[AclEntry]) -> Permission:
    permissions = Permission(0)
    for entry in acl:
        if entry.is_everybody:
            permissions |= entry.permissions
    return permissions


def _others(acl: Iterable[AclEntry], login: Login | None) -> Iterator[str]:
    """Yield who else may change a znode than our login, which Kafka's tools have by SASL."""
    for entry in acl:
        if login is None or entry.is_everybody or not entry.permissions & Permission.changes():
            continue
        if (entry.scheme, entry.user) in (("digest", login.digest), ("sasl", login.user)):
            continue
        user = entry.user.partition(":")[0] if entry.scheme == "digest" else entry.user
        yield f"{entry.scheme}:{user}"


def _grouped(paths: Iterable[str]) -> Mapping[str, list[str]]:
    groups = defaultdict(list)
    for path in sorted(paths):
        groups["/" + "/".join(path.split("/")[1 : 1 + _FIRST_NAMES])].append(path)
    return groups


def _named(group: str, paths: list[str]) -> str:
    if len(paths) == 1:
        return paths[0]
    count = how_many(len(paths), "znode", "znodes")
    return f"{count} in {group} ({listed(paths, _NAMED)})"


# --- servers -------------------------------------------------------------------------------------


def _servers(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Check each server: whether it is beyond loopback, and which words it answers."""
    servers = [_host_and_port(text) for text in cluster.zookeeper.partition("/")[0].split(",")]
    with ThreadPoolExecutor(max(len(servers), 1)) as threads:
        answered = list(threads.map(lambda server: _answered_words(*server), servers))
    for (host, port), words in zip(servers, answered, strict=True):
        name = f"{host}:{port}"
        if not is_loopback(host):
            message = (
                f"ZooKeeper at {name} is not encrypted: all on the network path can read its"
                " data and the secret of the login"
            )
            remedy = "let only the machines of the cluster reach it"
            yield _finding(Severity.WARNING, name, message, remedy)
        if words:
            message = f"ZooKeeper at {name} tells every client of its sessions and settings"
            allowed = "set 4lw.commands.whitelist=srvr in its zoo.cfg"
            yield _finding(Severity.WARNING, name, f"{message} ({listed(words)})", allowed)


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal():
        return text.strip(), _DEFAULT_PORT
    return host.removeprefix("[").removesuffix("]"), int(port)


def _answered_words(host: str, port: int) -> list[str]:
    """Return the four-letter words that a server answers beside ``srvr``."""
    return [word for word in _WORDS if _is_answered(host, port, word)]


def _is_answered(host: str, port: int, word: str) -> bool:
    try:
        with socket.create_connection((host, port), _WORD_LIMIT_S) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as stream:
                answer = stream.read(_MAX_ANSWER_BYTES)
    except OSError:
        return False
    return bool(answer) and _NOT_ALLOWED not in answer
