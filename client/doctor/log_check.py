"""Log directories of all brokers: failed, nearly full, and with logs that belong to nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.served_cluster import ServedCluster
from regent.client.log_sizes import LogDirectorySize, LogSize
from regent.client.wording import counted, listed
from regent.config.command_line import program
from regent.core.model import BrokerId
from regent.core.quantities import bytes_text, span_text
from regent.storage.disk_space import Room
from regent.storage.log_names import STRAY, TO_DELETE, is_moved

LOGS: Final = "logs"
"""The name of this check."""

_LOG_DIRS: Final = "log.dirs"
_DELETE_DELAY: Final = "file.delete.delay.ms"
_DEFAULT_DELAY_MS: Final = 60_000
_NEARLY_FULL_PERCENT: Final = 85
_FULL_PERCENT: Final = 95
_LATE_S: Final = 600.0
_NAMED: Final = 3


def check_logs(
    cluster: ExaminedCluster, now_s: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Check what brokers tell of their log directories, and the directories on this machine."""
    if cluster.served is None:
        return
    for broker_id, directories in sorted(cluster.served.log_dirs.items()):
        for directory in directories:
            yield from _disk(broker_id, directory, is_told=broker_id in cluster.served.caches)
    for broker_id, logs in sorted(cluster.served.unassigned.items()):
        yield _unassigned(broker_id, logs)
    for broker_id in sorted(cluster.local_brokers):
        yield from _set_aside(broker_id, cluster, cluster.served, now_s())


def _finding(broker_id: BrokerId, severity: Severity, message: str, remedy: str) -> Finding:
    return Finding(LOGS, severity, f"broker {broker_id}", message, remedy)


def _disk(broker_id: BrokerId, directory: LogDirectorySize, *, is_told: bool) -> Iterator[Finding]:
    """Yield a finding for a failed or full directory; ``is_told``: the broker warns if it fills."""
    where = f"log directory {directory.log_dir} of broker {broker_id}"
    if directory.is_offline:
        remedy = "make room on its disk, or replace it, and restart the broker"
        yield _finding(broker_id, Severity.PROBLEM, f"{where} has failed", remedy)
        return
    used = Room(directory.total_bytes, directory.free_bytes).used_percent
    if used >= _NEARLY_FULL_PERCENT and not is_told:
        severity = Severity.PROBLEM if used >= _FULL_PERCENT else Severity.WARNING
        message = (
            f"the file system of {where} is {used:.0f} % full: {bytes_text(directory.free_bytes)}"
            " are left"
        )
        remedy = f"`{program()} logs` names the largest logs: lower their retention.ms or move them"
        yield _finding(broker_id, severity, message, remedy)


def _unassigned(broker_id: BrokerId, logs: Collection[LogSize]) -> Finding:
    names = listed(sorted(log.topic_partition for log in logs), _NAMED)
    message = (
        f"broker {broker_id} serves {counted(len(logs), 'log')} of partitions that are not assigned"
        f" to it ({names}; {bytes_text(sum(log.size for log in logs))})"
    )
    remedy = (
        "run this again, because a deletion may be under way; if it stays, restart the broker:"
        " it sets such logs aside"
    )
    return _finding(broker_id, Severity.WARNING, message, remedy)


def _set_aside(
    broker_id: BrokerId, cluster: ExaminedCluster, served: ServedCluster, now_s: float
) -> Iterator[Finding]:
    """Yield findings for the renamed logs in the directories of a broker of this machine."""
    settings = cluster.settings.get(broker_id, {})
    delay = settings.get(_DELETE_DELAY, "")
    late_s = _LATE_S + (int(delay) if delay.isdecimal() else _DEFAULT_DELAY_MS) / 1000
    found = dict(_renamed(filter(None, settings.get(_LOG_DIRS, "").split(",")), now_s))
    strays = sorted(path for path in found if path.name.endswith(STRAY))
    if strays and broker_id not in served.caches:  # a broker of Regent names its own
        message = f"broker {broker_id} has {counted(len(strays), 'stray log')}, which no client can"
        message += f" read: {listed(strays, _NAMED)}"
        remedy = 'see "Stray logs" in docs/operations.md; remove them to give up their records'
        yield _finding(broker_id, Severity.WARNING, message, remedy)
    late = sorted(
        path for path, age_s in found.items() if path.name.endswith(TO_DELETE) and age_s > late_s
    )
    if late:
        message = (
            f"{counted(len(late), 'log')} of broker {broker_id} {'is' if len(late) == 1 else 'are'}"
            f" still on the disk, {span_text(max(found[path] for path in late))} after the"
            f" deletion: {listed(late, _NAMED)}"
        )
        remedy = "its broker.log says why; a restart of the broker deletes them"
        yield _finding(broker_id, Severity.WARNING, message, remedy)


def _renamed(directories: Iterable[str], now_s: float) -> Iterator[tuple[Path, float]]:
    """Yield the renamed logs of directories, and how many seconds ago that was."""
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if is_moved(entry.name):
                        yield Path(entry.path), now_s - entry.stat().st_ctime
        except OSError:
            continue  # the check of files says so
