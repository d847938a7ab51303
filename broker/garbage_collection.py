"""Keeps the pauses of Python's garbage collector short.

A collection looks at all containers of its generations, 150 ns each, while no other thread runs. So
the survivors of a long one are not looked at again. They are freed as soon as nothing refers to
them, as before; only a cycle among them would stay. A collection of the youngest generation looks
at a few thousand objects, and freezes nothing. One of an older generation is long only if the heap
has grown by as much, so few are ever frozen.

A Python build without the GIL has no generations: every collection is full, and stops all threads.
"""

from __future__ import annotations

import gc
import sysconfig
from collections.abc import Callable
from time import perf_counter
from typing import TypeAlias

LONG_S = 0.01
Callback: TypeAlias = Callable[[str, dict[str, int]], None]

_SURVIVORS = 0 if sysconfig.get_config_var("Py_GIL_DISABLED") else 1  # from this generation on


def limit_pauses(long_s: float = LONG_S) -> Callback:
    """Set up the collector for a broker; return the callback that ``gc`` calls.

    A controller builds and keeps hundreds of thousands of objects; the default thresholds would
    double the time of a failover.
    """
    gc.freeze()
    gc.set_threshold(25_000, 4, 20)
    began = 0.0

    def freeze_survivors(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if info["generation"] < _SURVIVORS:
            return
        if phase == "start":
            began = perf_counter()
        elif perf_counter() - began > long_s:
            gc.freeze()

    gc.callbacks.append(freeze_survivors)
    return freeze_survivors
