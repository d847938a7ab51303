"""Print the Python that ``make`` sets up .venv with: python3, or the system's where it is faster.

A Python that was compiled on its machine is often built without profile-guided optimization: pyenv
leaves it out, Linux distributions do not. Brokers write a tenth less with it. Nothing that a Python
says of its build tells it, so both run a piece of Python here.

This file runs before anything is installed, also under a Python that is too old for all others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

OLDEST = (3, 11)
MUCH_FASTER = 0.93
"""Another Python than python3 is taken if it needs less than this share of its time."""

_ROUNDS = 12
_TIMEOUT_S = 30
_SYSTEM = "/usr/bin/python3"

# The import makes a Python unusable that cannot create a virtual environment: Debian has it in a
# package of its own. The rest is what brokers do: calls, attributes, dicts, tuples, packed numbers.
_WORK = """
import ensurepip, struct, time, venv

class Partition:
    __slots__ = ("leader", "leader_epoch")

    def __init__(self, leader, leader_epoch):
        self.leader = leader
        self.leader_epoch = leader_epoch

    def is_led(self):
        return self.leader >= 0

def work():
    row = struct.Struct(">iiq")
    known = {}
    for offset in range(20000):
        partition = Partition(offset % 3, offset)
        known[offset & 1023] = partition
        if partition.is_led() and known.get(offset) is not None:
            leader, epoch, end = row.unpack(row.pack(partition.leader, offset, offset))
            known[leader, epoch] = (end, partition.leader_epoch)

def seconds():
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

print(min(seconds() for _ in range(6)))
"""


def seconds_of_work(python: str) -> float | None:
    """Return how long this Python needs for the piece of work, None if ``make`` cannot use it."""
    guard = f"import sys\nsys.version_info >= {OLDEST} or sys.exit(1)\n"
    command = [python, "-I", "-c", guard + _WORK]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True)
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def fastest(first: str, others: Sequence[str]) -> str | None:
    """Return ``first``, or one of the others that is much faster or that alone can be used.

    All are timed several times, in turn, and the best time of each counts: what else the machine
    does only adds time. None says that none can be used.
    """
    best: dict[str, float] = {}
    for _ in range(_ROUNDS if others else 1):
        for python in (first, *others):
            seconds = seconds_of_work(python)
            if seconds is not None:
                best[python] = min(seconds, best.get(python, seconds))
    if not best:
        return None
    winner = min(best, key=best.__getitem__)
    is_close = first in best and best[winner] > MUCH_FASTER * best[first]
    return first if is_close else winner


def main(asked: Sequence[str]) -> None:
    """Print the path of the Python to use: the one that was asked for, or the fastest.

    Exits with 1 and one line if it cannot be used.
    """
    first = asked[0] if asked else shutil.which("python3") or sys.executable
    is_system = os.path.realpath(first) == os.path.realpath(_SYSTEM)
    python = fastest(first, [] if asked or is_system else [_SYSTEM])
    if python is None:
        oldest = ".".join(map(str, OLDEST))
        sys.exit(
            f"{first}: Python {oldest} or later with venv is needed: make PYTHON=PATH names one"
        )
    if python != first:
        sys.stderr.write(
            f"{first} is slower than {python}, or cannot be used: make PYTHON=PATH decides it\n"
        )
    sys.stdout.write(f"{python}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
