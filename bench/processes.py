"""What processes of this machine use: processor time and memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_USER_TIME: Final = 11  # in /proc/PID/stat, after the name of the program
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


def cpu_seconds(pid: int | None) -> float:
    """Return the processor time of a process so far, user and system."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[_USER_TIME : _USER_TIME + 2])) / _TICKS


def resident_mb(pid: int | None) -> float:
    """Return the memory of a process, in MB of 10^6 bytes."""
    if pid is None:
        return 0.0
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
