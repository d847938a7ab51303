"""Keeps the pauses of Python's garbage collector short.

A full collection looks at every container: 200 ns for each partition of a controller, while no
other thread runs. So it runs seldom, and the survivors of a long one are not looked at again. They
are freed as soon as nothing refers to them, as before; only a cycle among them would stay. A
collection is long again only after the heap has grown by as much, so few are ever frozen.

A Python build without the GIL has no generations: every collection is full, and stops all threads.
"""

from __future__ import annotations

import gc
import sysconfig
from collections.abc import Callable
from time import perf_counter
from typing import TypeAlias

LONG_S = 0.02
Callback: TypeAlias = Callable[[str, dict[str, int]], None]

_FULL = 0 if sysconfig.get_config_var("Py_GIL_DISABLED") else 2  # from this generation on


def limit_pauses(long_s: float = LONG_S) -> Callback:
    """Set up the collector for a broker; return the callback that ``gc`` calls.

    A controller builds and keeps hundreds of thousands of objects; the default thresholds would
    double the time of a failover.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    began = 0.0

    def freeze_survivors(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if info["generation"] < _FULL:
            return
        if phase == "start":
            began = perf_counter()
        elif perf_counter() - began > long_s:
            gc.freeze()

    gc.callbacks.append(freeze_survivors)
    return freeze_survivors
