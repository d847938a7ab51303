"""Ends a thread as a defect would."""

from __future__ import annotations

import ctypes
import threading


def kill_thread(name: str) -> None:
    """Raise ``SystemExit`` in the thread with this name as soon as it runs Python code."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == name)
    assert thread.ident is not None
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    assert raised == 1
