"""What the checks look at: it is read once, with a limit in time, before the checks run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from regent.client.answered_tree import NOT_TOLD
from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.cluster_connection import Cluster, ClusterNotFoundError
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.listening_sockets import PROC, command_line, target_of, user_of
from regent.client.doctor.served_cluster import ServedCluster, read_served
from regent.client.health import Troubles
from regent.cluster.cluster_file import ClusterFile
from regent.config.cluster_location import CLUSTER_FILE, LOCK_FILE
from regent.config.command_line import program
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId, BrokerInfo
from regent.core.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.client.operations import AclEntry
from regent.zk.stores.admin_store import ZkAdminStore

CLUSTER: Final = "cluster"
"""The name of this check: what does not run or answer, and so is not examined."""

SUPERVISOR: Final = "supervisor"
PLACEMENT: Final = "placement service"

_ASK_LIMIT_S: Final = 3.0
_ASKED_AT_ONCE: Final = 32
_DESCRIBE_CONFIGS: Final = (KafkaApiKey.DESCRIBE_CONFIGS, 4)
_BROKER: Final = 4  # the type of a resource

Settings = Mapping[str, str]
"""The settings of a broker by Kafka's names; those of ours begin with ``regent.``."""


@dataclass(slots=True)
class ExaminedCluster:
    """A cluster as this machine sees it.

    ``data_dir`` and ``file`` are those of a local cluster, else None; ``folder`` is the directory
    whose files are examined. ``registrations`` and ``acls`` are None without ZooKeeper.
    ``settings`` lacks the brokers that have not answered. ``processes`` are the processes of the
    local cluster that live, by id: ``SUPERVISOR``, ``PLACEMENT``, ``broker 0``,
    ``zookeeper 0``. ``served`` is None without ZooKeeper. ``watched_s``: how long groups may be
    watched, in seconds.
    """

    zookeeper: str = ""
    data_dir: Path | None = None
    file: ClusterFile | None = None
    folder: Path | None = None
    registrations: Mapping[BrokerId, BrokerInfo] | None = None
    acls: Sequence[tuple[str, Sequence[AclEntry]]] | None = None
    settings: Mapping[BrokerId, Settings] = field(default_factory=dict)
    processes: Mapping[int, str] = field(default_factory=dict)
    served: ServedCluster | None = None
    watched_s: float = 0.0

    @property
    def is_zookeeper_open(self) -> bool:
        """Whether everybody may change the root of the tree, so that nothing is protected."""
        return any(
            entry.is_everybody and entry.permissions & entry.permissions.changes()
            for path, acl in self.acls or ()
            if path == "/"
            for entry in acl
        )

    @property
    def local_brokers(self) -> frozenset[BrokerId]:
        """The brokers whose processes live on this machine, as ``cluster.json`` says."""
        entries = {} if self.file is None else self.file.brokers
        return frozenset(id_ for id_, entry in entries.items() if entry.pid in self.processes)


def examine(cluster: Cluster, folder: Path | None) -> tuple[ExaminedCluster, list[Finding]]:
    """Read what the checks need; return it with a finding for each thing that is away.

    ``folder`` is the data directory of a local cluster, or one that the command line names.
    """
    examined = ExaminedCluster(folder=folder)
    findings = []
    try:
        examined.zookeeper = cluster.zookeeper_address
        examined.data_dir, examined.file = cluster.data_dir, cluster.file
    except RegentError as error:  # no cluster, or a file of it cannot be used
        findings.append(_away("cluster", str(error)))
        examined.data_dir, examined.file = _of_folder(folder)
    examined.folder = examined.data_dir or folder
    if examined.data_dir is not None and examined.file is not None:
        examined.processes = _processes(examined.data_dir, examined.file)
    has_ended = examined.file is not None and not examined.processes
    if has_ended:
        findings.append(_ended(examined))
    if cluster.bootstrap or (
        examined.zookeeper and not (has_ended and _has_own_zookeeper(examined))
    ):
        findings += _read_zookeeper(cluster, examined)
    if not has_ended:
        findings += _dead_brokers(examined)
    if examined.registrations is not None:
        findings += _ask_brokers(examined)
        findings += _read_served(cluster, examined)
    return examined, findings


def _ended(examined: ExaminedCluster) -> Finding:
    message = f"the cluster in {examined.data_dir} does not run, and was not stopped in order"
    where = shlex.quote(str(examined.data_dir))
    return _away("cluster", message, f"`{program()} cluster --data-dir {where}` starts it again")


def _has_own_zookeeper(examined: ExaminedCluster) -> bool:
    return examined.file is not None and bool(examined.file.zookeeper_nodes)


def _of_folder(folder: Path | None) -> tuple[Path | None, ClusterFile | None]:
    """Return a data directory and its ``cluster.json``, or nothing if that cannot be read."""
    try:
        file = None if folder is None else ClusterFile.read(folder / CLUSTER_FILE)
    except RegentError:
        file = None
    return (None, None) if file is None else (folder, file)


def _away(subject: str, message: str, remedy: str = "") -> Finding:
    return Finding(CLUSTER, Severity.PROBLEM, subject, message, remedy)


def _processes(data_dir: Path, file: ClusterFile) -> dict[int, str]:
    """Return the processes of a local cluster that live, and what they are."""
    listed = {node.pid: f"zookeeper {n}" for n, node in enumerate(file.zookeeper_nodes)}
    listed |= {broker.pid: f"broker {broker.id}" for broker in file.brokers.values()}
    if file.placement is not None and file.placement.pid:
        listed[file.placement.pid] = PLACEMENT
    alive = {pid: name for pid, name in listed.items() if _is_of(data_dir, pid)}
    supervisor = _supervisor(data_dir)
    return alive if supervisor is None else {supervisor: SUPERVISOR, **alive}


def _is_of(data_dir: Path, pid: int) -> bool:
    """Whether a process lives and was started with a path in a folder; its id may be used again."""
    try:
        arguments = command_line(pid)
    except OSError:
        return False
    folder = data_dir.resolve()
    return any(
        Path(argument).resolve().is_relative_to(folder)
        for argument in arguments
        if os.path.isabs(argument)
    )


def _supervisor(data_dir: Path) -> int | None:
    """Return the process that has the lock of a data directory; None if it has ended."""
    lock = data_dir.resolve() / LOCK_FILE
    try:
        pid = int(lock.read_text(encoding="ascii"))
        descriptors = list((PROC / str(pid) / "fd").iterdir())
    except (OSError, ValueError):
        return None
    return pid if str(lock) in map(target_of, descriptors) else None


# --- ZooKeeper -----------------------------------------------------------------------------------


def _read_zookeeper(cluster: Cluster, examined: ExaminedCluster) -> Iterator[Finding]:
    try:
        with cluster.admin() as admin:
            yield from _read_registrations(admin, examined)
            if not admin.tells_all:
                yield Finding(CLUSTER, Severity.OK, "zookeeper", f"not examined: {NOT_TOLD}")
                return
        with cluster.admin() as admin:
            same: dict[Sequence[AclEntry], Sequence[AclEntry]] = {}  # most znodes have a few ACLs
            examined.acls = [(path, same.setdefault(acl, acl)) for path, acl in admin.read_acls()]
    except ClusterNotFoundError as error:
        done = "znodes" if examined.registrations is not None else "znodes, settings of brokers"
        yield _away("zookeeper", f"{error}; not examined: {done}")


def _read_served(cluster: Cluster, examined: ExaminedCluster) -> Iterator[Finding]:
    troubles = Troubles()
    examined.served = ServedCluster(troubles=troubles)
    try:
        with cluster.admin() as admin:
            local = examined.data_dir, examined.file
            examined.served = read_served(admin, examined.settings, troubles, *local)
    except RegentError as error:
        yield _away("zookeeper", f"{error}; not examined: partitions and topics")


def _read_registrations(admin: ZkAdminStore, examined: ExaminedCluster) -> Iterator[Finding]:
    examined.registrations, found = {}, {}
    with suppress(BadDataError):  # it is said with what cannot be read of topics
        found = admin.read_brokers()
    examined.registrations = {
        broker_id: registration.info
        for broker_id, registration in found.items()
        if not isinstance(registration, BadDataError)
    }
    for broker_id, registration in found.items():
        if isinstance(registration, BadDataError):
            yield _away(f"broker {broker_id}", str(registration))


# --- brokers -------------------------------------------------------------------------------------


def _dead_brokers(examined: ExaminedCluster) -> Iterator[Finding]:
    entries = {} if examined.file is None else examined.file.brokers
    for broker_id, entry in entries.items():
        name = f"broker {broker_id}"
        if entry.pid not in examined.processes:
            how = entry.ended or "has ended"
            message = f"{name} does not run: its process {entry.pid} {how}"
            yield _away(name, message, f"`{program()} brokers start {broker_id}`")
        elif examined.registrations is not None and broker_id not in examined.registrations:
            message = f"{name} runs as process {entry.pid} and is not registered in ZooKeeper"
            yield _away(name, message, "its broker.log has the reason, unless it stands still")


def _ask_brokers(examined: ExaminedCluster) -> Iterator[Finding]:
    """Ask the registered brokers for their settings, all at once, without those that are dead."""
    entries = {} if examined.file is None else examined.file.brokers
    dead = entries.keys() - examined.local_brokers
    registrations = {}
    for broker_id, info in (examined.registrations or {}).items():
        if SECURITY_OF_COMMAND.endpoint_of(info) is None:
            name, protocol = f"broker {broker_id}", SECURITY_OF_COMMAND.protocol.value
            message = (
                f"the settings of {name} are not examined: none of its listeners is {protocol}"
            )
            remedy = "--command-config FILE says how to connect"
            yield Finding(CLUSTER, Severity.WARNING, name, message, remedy)
        elif broker_id not in dead:
            registrations[broker_id] = info
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        answers = list(threads.map(_settings_of, registrations.values()))
    examined.settings = {
        broker_id: answer
        for broker_id, answer in zip(registrations, answers, strict=True)
        if not isinstance(answer, str)
    }
    for broker_id, answer in zip(registrations, answers, strict=True):
        if isinstance(answer, str):
            name = f"broker {broker_id}"
            message = f"{name} does not tell its settings ({answer}), so they are not examined"
            yield _away(name, message, _who_may_ask(examined, broker_id))


def _who_may_ask(examined: ExaminedCluster, broker_id: BrokerId) -> str:
    """Return what to do about a broker that does not answer: root is another user, too."""
    if broker_id in examined.local_brokers and examined.file is not None:
        with suppress(OSError):
            if user_of(examined.file.brokers[broker_id].pid) != os.geteuid():
                return "run this as the user of the broker"
    return f"`{program()} status` says more"


def _settings_of(broker: BrokerInfo) -> Settings | str:
    """Return the settings of a broker with such a listener, or why it has not told them."""
    endpoint = SECURITY_OF_COMMAND.endpoint_of(broker)
    assert endpoint is not None
    resource = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker.broker_id), configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=(resource,))
    try:
        answer = ask_broker(
            endpoint, _DESCRIBE_CONFIGS, request, DescribeConfigsResponse, _ASK_LIMIT_S
        )
    except (NoAnswerError, RegentError) as error:
        return f"{endpoint.host}:{endpoint.port}: {error}"
    for result in answer.results:
        if result.error_code == Errors.NONE:
            return {row.name: row.value for row in result.configs if row.value is not None}
        return f"error {result.error_code}: {result.error_message}"
    return "it answers with nothing"
