"""Every socket on which a process of a local cluster waits for others, and who may connect.

A socket that is not in the tables below is a problem until somebody has decided what a stranger may
do there: a library may have opened it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from regent.client.doctor.examined_cluster import (
    PLACEMENT,
    SUPERVISOR,
    ExaminedCluster,
    Settings,
)
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.listener_check import (
    LOCAL_USERS,
    Access,
    Listener,
    access,
    listeners_by_port,
    listeners_told,
    local_access,
    user_name,
)
from regent.client.doctor.listening_sockets import (
    ListeningSocket,
    command_line,
    listening_sockets,
    may_be_examined,
    process_tree,
    user_of,
)
from regent.client.doctor.spark_ports import SparkPort, spark_port
from regent.cluster.cluster_file import BrokerEntry
from regent.cluster.console_child import LISTENING_FD
from regent.cluster.embedded_zookeeper import PEER_FILE, USERS_OPTION
from regent.config.addresses import port_of
from regent.config.cluster_location import numbered_folders
from regent.config.command_line import program
from regent.core.security.session import SecurityProtocol
from regent.transport.local_users import SAME

SOCKETS: Final = "sockets"
"""The name of this check."""

_SPARKS_JVM: Final = "Spark's JVM"
_SPARKS_DAEMON: Final = "Spark's daemon"
_SPARK_LIMIT_S: Final = 2.0
_SHOWN_COMMAND: Final = 60  # characters
_METRICS_TOKEN: Final = "regent.metrics.token.file"
_TOKEN_OF_PY4J: Final = Access("who has Py4J's token", "it is in the memory of two processes")
_CONSOLE: Final = "console"
_UNKNOWN: Final = Access(
    "nobody knows who",
    "it is not in the list of sockets that a cluster has",
    Severity.PROBLEM,
    "find out what the process is, and end it if it is not yours",
)


class _Use(NamedTuple):
    """What a socket is for, and who may connect."""

    purpose: str
    access: Access


_UseOf: TypeAlias = Callable[[ListeningSocket], _Use]
"""What a socket at a known port is for; who may connect depends on its address."""


def check_sockets(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Check every socket of the processes that the local cluster has started."""
    supervisors = [pid for pid, name in cluster.processes.items() if name == SUPERVISOR]
    tree: dict[int, str] = {}
    for pid in supervisors or cluster.processes:
        tree |= process_tree(pid)
    names = {pid: cluster.processes.get(pid) or _name(pid, tree[pid]) for pid in sorted(tree)}
    shown = [pid for pid in names if may_be_examined(pid)]
    for pid in names.keys() - shown:
        message = f"the sockets of {names[pid]} (process {pid}) cannot be examined: it is another's"
        remedy = f"run `{program()} doctor` as its user"
        yield Finding(SOCKETS, Severity.WARNING, names[pid], message, remedy, {"pid": pid})
    sockets = sorted(set(listening_sockets(shown)))
    for pid, found in itertools.groupby(sockets, lambda each: each.pid):
        uses = _uses(cluster, pid)
        for each in found:
            known = uses.get(each.port) if each.kind == "tcp" else None
            use = _use(cluster, each, names[pid]) if known is None else known(each)
            yield _finding(each, names[pid], use)


def _finding(found: ListeningSocket, name: str, use: _Use) -> Finding:
    who, why, severity, remedy = use.access
    facts = {
        **found._asdict(),
        "process": name,
        "purpose": use.purpose,
        "who_may_connect": who,
        "why": why,
    }
    address = str(found)
    if found.kind == "unix" and address.startswith("/proc/self/"):  # its path there is too long
        address = f"{Path(address).name} in the data directory"
    message = f"{name} listens on {address} ({use.purpose}): {who} may connect ({why})"
    return Finding(SOCKETS, severity, name, message, remedy, facts)


def _name(pid: int, command: str) -> str:
    if "SparkSubmit" in command:
        return _SPARKS_JVM
    if "python_daemon" in command:
        return _SPARKS_DAEMON
    if LISTENING_FD in command:
        return _CONSOLE
    return f"process {pid} ({command[:_SHOWN_COMMAND] or 'without a name'})"


def _uses(cluster: ExaminedCluster, pid: int) -> Mapping[int, _UseOf]:
    """Return what the TCP ports of a process are for that the cluster knows."""
    file = cluster.file
    assert file is not None
    brokers = {broker.pid: broker for broker in file.brokers.values()}
    if pid in brokers:
        return _of_broker(cluster, brokers[pid])
    servers = {server.pid: server.port for server in file.zookeeper_nodes}
    if pid in servers:
        between = dict.fromkeys(_peers(cluster), _between_servers)
        return {**between, servers[pid]: partial(_of_clients_of_zookeeper, cluster)}
    if file.placement is not None and file.placement.endpoint and pid == file.placement.pid:
        of_placement = partial(_of_keys, "requests to place partitions", {})
        return {port_of(file.placement.endpoint): of_placement}
    return {}


# --- brokers -------------------------------------------------------------------------------------


def _of_broker(cluster: ExaminedCluster, broker: BrokerEntry) -> Mapping[int, _UseOf]:
    settings = cluster.settings.get(broker.id)
    known = settings or {}
    plaintext = SecurityProtocol.PLAINTEXT.value
    registered = (cluster.registrations or {}).get(broker.id)
    listeners = {} if registered is None else listeners_by_port(registered)
    listeners |= listeners_told(known)
    listeners.setdefault(broker.port, Listener.of(plaintext, plaintext, broker.host))
    uses: dict[int, _UseOf] = {
        port: partial(_of_listener, f"listener {listener.name}", listener, settings)
        for port, listener in listeners.items()
    }
    followers = Listener.of("replication", plaintext, broker.host)
    for port in _ports(known, "replication", broker.replication_port):
        uses.setdefault(port, partial(_of_listener, "followers", followers, settings))
    for port in _ports(known, "control", broker.control_port):
        uses[port] = partial(_of_keys, "control requests", known)
    for port in _ports(known, "metrics", broker.metrics_port):
        uses[port] = partial(_of_metrics, settings)
    return uses


def _ports(settings: Settings, name: str, announced: int) -> set[int]:
    """Return the port that a setting names, and the announced one, which may be another's."""
    return {announced, int(settings.get(f"regent.{name}.port", 0))} - {0}


def _of_listener(
    purpose: str, listener: Listener, settings: Settings | None, found: ListeningSocket
) -> _Use:
    there = listener._replace(host=found.address)
    return _Use(purpose, access(there, settings, _user(found.pid)))


def _of_keys(purpose: str, settings: Settings, found: ListeningSocket) -> _Use:
    """Return who may connect to a port with CURVE; on loopback users are checked, too."""
    who, why = "owners of allowed keys", "CURVE"
    if found.is_on_loopback:
        local = local_access(settings.get(LOCAL_USERS, SAME), _user(found.pid))
        if local.severity is Severity.OK:
            who, why = f"{who} that are {local.who}", f"{why} and {local.why}"
    return _Use(purpose, Access(who, why))


def _of_metrics(settings: Settings | None, found: ListeningSocket) -> _Use:
    known = settings or {}
    if known.get(_METRICS_TOKEN):
        return _Use("metrics", Access("who has the token", "metrics_token_file"))
    if found.is_on_loopback:
        setting, user = known.get(LOCAL_USERS, SAME), _user(found.pid)
        return _Use("metrics", local_access(setting, user, is_known=settings is not None))
    everybody = Access(
        "everybody who reaches that address",
        "metrics have no login, and show the names of topics",
        Severity.PROBLEM,
        "let only Prometheus reach the port, or listen on loopback",
    )
    return _Use("metrics", everybody)


# --- ZooKeeper -----------------------------------------------------------------------------------


def _between_servers(found: ListeningSocket) -> _Use:
    anybody = Access(
        _who_reaches(found),
        "servers of an ensemble have no login among themselves",
        Severity.WARNING,
        "use one server (--zookeeper-nodes 1, the default) where others have an account",
    )
    return _Use("other servers of the ensemble", anybody)


def _of_clients_of_zookeeper(cluster: ExaminedCluster, found: ListeningSocket) -> _Use:
    who, checked = _clients_of_zookeeper(found)
    anybody = Access(who, f"{checked}changes need zookeeper.secret")
    if cluster.acls is None:
        anybody = anybody._replace(why="what they may do is not known")
    elif cluster.is_zookeeper_open:
        anybody = Access(
            who,
            "they may change everything, because there is no login",
            Severity.PROBLEM,
            f"start `{program()} cluster` without --no-zookeeper-login",
        )
    return _Use("ZooKeeper's clients", anybody)


def _clients_of_zookeeper(found: ListeningSocket) -> tuple[str, str]:
    """Return who may connect, and the beginning of why."""
    options = command_line(found.pid) if found.is_on_loopback else []
    for option in options:
        if option.startswith(USERS_OPTION):
            users = [user_name(int(uid)) for uid in option.removeprefix(USERS_OPTION).split(",")]
            return f"processes of {' and '.join(users)}", "the uid check; "
    return _who_reaches(found), ""


def _who_reaches(found: ListeningSocket) -> str:
    local = found.is_on_loopback
    return "every user of this machine" if local else "everybody who reaches that address"


def _peers(cluster: ExaminedCluster) -> Iterator[int]:
    """Yield the ports of the servers of an ensemble for each other."""
    assert cluster.data_dir is not None
    for folder in numbered_folders(cluster.data_dir, "zookeeper").values():
        with suppress(OSError, ValueError, KeyError, TypeError):
            peer = json.loads((folder / PEER_FILE).read_bytes())
            yield from (int(peer["quorum_port"]), int(peer["election_port"]))


# --- other processes -----------------------------------------------------------------------------


def _use(cluster: ExaminedCluster, found: ListeningSocket, name: str) -> _Use:
    """Return what a socket is for that no table of ports has."""
    assert cluster.data_dir is not None
    assert cluster.file is not None
    if found.kind == "tcp" and found.port == cluster.file.console_port and found.is_on_loopback:
        local = local_access(SAME, _user(found.pid))
        who = f"{local.who} with the token in the address that `cluster` printed"
        return _Use("web page", local._replace(who=who, why="the uid check and the token"))
    known = _of_owner(found, cluster.data_dir) if found.kind == "unix" else None
    if found.kind == "unix" and name in (SUPERVISOR, PLACEMENT, _SPARKS_DAEMON):
        purpose = "commands that start brokers" if name == SUPERVISOR else "Python workers"
        return _Use(purpose, known or _UNKNOWN)
    if found.kind == "tcp" and found.is_on_loopback:
        if name == _SPARKS_JVM:
            return _of_jvm(found.port)
        if name == PLACEMENT:
            return _Use("accumulators of Spark", _TOKEN_OF_PY4J)
        if name == _SPARKS_DAEMON:
            secret = Access("who has its secret", "in the environment of the daemon")
            return _Use("Python workers", secret)
    return _Use("unknown", _UNKNOWN)


def _of_jvm(port: int) -> _Use:
    """Ask a port of Spark's JVM, as a client without a secret."""
    try:
        what = spark_port(port, _SPARK_LIMIT_S)
    except OSError as error:
        return _Use("unknown", _UNKNOWN._replace(why=f"it does not answer: {error}"))
    match what:
        case SparkPort.PY4J:
            return _Use("Py4J", _TOKEN_OF_PY4J)
        case SparkPort.RPC:
            secret = Access("who has Spark's secret, so nobody", "spark.authenticate, asked now")
            return _Use(what.value, secret)
        case SparkPort.OPEN:
            runs = "every user of this machine"
            why = "it answers without a secret, and runs what it is sent"
            remedy = "set spark.authenticate = true"
            return _Use("RPC or blocks", Access(runs, why, Severity.PROBLEM, remedy))
        case SparkPort.UNKNOWN:
            return _Use("unknown", _UNKNOWN)


def _of_owner(found: ListeningSocket, data_dir: Path) -> Access:
    if found.has_no_path:
        why = "it has no path, so no mode protects it"
        return _UNKNOWN._replace(who="every user of this machine", why=why)
    below = data_dir.resolve()
    if found.address.startswith("/") and not Path(found.address).is_relative_to("/proc/self"):
        below = below if Path(found.address).is_relative_to(below) else Path("/")
    try:
        is_closed = found.is_of_the_owner(below)
    except OSError as error:
        return _UNKNOWN._replace(why=f"{found.address}: {error.strerror}")
    if is_closed:
        return Access(f"processes of {_user(found.pid)}", "the mode of the socket or its folder")
    remedy = f"chmod go-rwx {found.address}"
    return Access("every user of this machine", "its mode", Severity.PROBLEM, remedy)


def _user(pid: int) -> str:
    try:
        return user_name(user_of(pid))
    except OSError:
        return "its user"
