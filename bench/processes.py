"""What processes of this machine use: processor time and memory."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SESSION: Final = 3  # in /proc/PID/stat, after the name of the program
_USER_TIME: Final = 11
_LISTENING: Final = "0A"


def listening_on(port: int) -> int | None:
    """Return the process that listens on a TCP port; None: none of this machine that we may see."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(entry) in sockets for entry in folder.iterdir()):
                return int(folder.parent.name)
        except OSError:  # it ended, closed the file, or is not ours
            continue
    return None


def _inodes(port: int) -> Iterable[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def local_processes(ports: Iterable[int]) -> list[int]:
    """Return the processes that listen on these ports; raises ``AssertionError`` without one."""
    pids = [listening_on(port) for port in ports]
    assert None not in pids, "a broker is not a process of this machine that we may see"
    return [pid for pid in pids if pid is not None]


def wakeups(pid: int) -> Counter[str]:
    """Return how often threads of a process stopped to wait, by name without numbers.

    Those that have ended are missing. The kernel keeps 15 bytes of a name.
    """
    counts = Counter[str]()
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            name = re.sub(r"[-/]*\d+", "", (folder / "comm").read_text().strip())
            lines = (folder / "status").read_text().splitlines()
            line = next(line for line in lines if line.startswith("voluntary_ctxt_switches"))
            counts[name] += int(line.split()[1])
    return counts


def proportional_mb(pid: int) -> float:
    """Return the memory of a process, with its share of what processes share, in MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("the kernel does not tell Pss")


def cpu_seconds(pid: int | None) -> float:
    """Return the processor time of a process so far, user and system."""
    if pid is None:
        return 0.0
    return _cpu_seconds(_stat(Path(f"/proc/{pid}/stat")))


def cpu_seconds_of_session(session: int) -> dict[int, float]:
    """Return the processor time of each process of a session.

    Processes that have ended are missing: gather the times of several calls.
    """
    seconds = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = _stat(stat)
            if int(fields[_SESSION]) == session:
                seconds[int(stat.parent.name)] = _cpu_seconds(fields)
    return seconds


def cpu_seconds_of_threads(pid: int, name: str) -> float:
    """Return the processor time of the threads of a process whose names begin with ``name``.

    Those that have ended are missing. The kernel keeps 15 bytes of a name.
    """
    seconds = 0.0
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            if (folder / "comm").read_text().startswith(name):
                seconds += _cpu_seconds(_stat(folder / "stat"))
    return seconds


def _stat(path: Path) -> list[str]:
    return path.read_text().rpartition(")")[2].split()


def _cpu_seconds(fields: list[str]) -> float:
    return sum(map(int, fields[_USER_TIME : _USER_TIME + 2])) / _TICKS


def resident_mb(pid: int | None) -> float:
    """Return the memory of a process, in MB of 10^6 bytes."""
    if pid is None:
        return 0.0
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


class Usage:
    """The processor time of some processes, of others beside them, and of this one, from now on."""

    def __init__(self, pids: Sequence[int | None], others: Sequence[int | None] = ()) -> None:
        self.pids = pids
        self._others = [pid for pid in others if pid not in pids]
        self._before = self._now()

    @classmethod
    def of_ports(cls, ports: Iterable[int], others: Iterable[int] = ()) -> Self:
        """Count the processes that listen on these ports; those of other machines count 0."""
        return cls([listening_on(port) for port in ports], [listening_on(port) for port in others])

    def result(self) -> dict[str, float]:
        """Return what was used since the start; ``others_cpu_s`` if there are others."""
        return {name: round(used - self._before[name], 2) for name, used in self._now().items()}

    def _now(self) -> dict[str, float]:
        now = {"cpu_s": sum(map(cpu_seconds, self.pids)), "bench_cpu_s": time.process_time()}
        return now | ({"others_cpu_s": sum(map(cpu_seconds, self._others))} if self._others else {})
