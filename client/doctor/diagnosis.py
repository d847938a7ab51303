"""Runs the checks of ``regent doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from regent.client.cluster_connection import Cluster
from regent.client.doctor.certificate_check import CERTIFICATES, check_certificates
from regent.client.doctor.examined_cluster import CLUSTER, ExaminedCluster, examine
from regent.client.doctor.file_check import FILES, check_files
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.group_check import GROUPS, WATCHED_S, check_groups
from regent.client.doctor.key_check import KEYS, check_keys
from regent.client.doctor.listener_check import LISTENERS, check_listeners
from regent.client.doctor.log_check import LOGS, check_logs
from regent.client.doctor.service_check import SERVICE, check_service
from regent.client.doctor.socket_check import SOCKETS, check_sockets
from regent.client.doctor.znode_check import ZOOKEEPER, check_zookeeper
from regent.core.errors import RegentError

Check: TypeAlias = Callable[[ExaminedCluster], Iterator[Finding]]

CHECKS: Final[Sequence[tuple[str, str, Check]]] = (
    (SERVICE, "Brokers, partitions and topics", check_service),
    (LOGS, "Log directories", check_logs),
    (GROUPS, "Consumer groups", check_groups),
    (SOCKETS, "Sockets of this machine", check_sockets),
    (LISTENERS, "Listeners of brokers", check_listeners),
    (CERTIFICATES, "Certificates of listeners", check_certificates),
    (ZOOKEEPER, "ZooKeeper", check_zookeeper),
    (FILES, "Files", check_files),
    (KEYS, "Keys", check_keys),
)
"""The checks: their names, their titles, and the functions."""

TITLES: Final = {
    CLUSTER: "Not running, or not answering",
    **{name: title for name, title, _ in CHECKS},
}
"""The titles of all findings, in their order."""


def diagnose(
    cluster: Cluster, folder: Path | None, *, watched_s: float = WATCHED_S
) -> list[Finding]:
    """Return what all checks find, the worst first in each check.

    ``folder`` is a data directory that the command line names. Groups whose records wait are
    watched for at most ``watched_s`` seconds. A check that cannot do its work is
    a finding.
    """
    examined, findings = examine(cluster, folder)
    examined.watched_s = watched_s
    for name, title, check in CHECKS:
        try:
            findings += check(examined)
        except (RegentError, OSError) as error:
            message = f"this check cannot be done: {error}"
            findings.append(Finding(name, Severity.PROBLEM, title, message))
    order = list(TITLES)
    return sorted(findings, key=lambda finding: (order.index(finding.check), -finding.severity))
