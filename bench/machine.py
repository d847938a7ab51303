"""The machine that a benchmark runs on, and how busy it is."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def load_average() -> float:
    """Return how many processes were ready to run in the last minute, on average."""
    return os.getloadavg()[0]


def describe_machine() -> dict[str, Any]:
    """Return what figures depend on, apart from the program."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processors": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
