"""Ends a thread as a defect would."""

from __future__ import annotations

import ctypes
import sys
import threading

from regent.testing.waits import eventually


def kill_thread(name: str, function: str) -> None:
    """Raise ``SystemExit`` in the thread with this name, while it runs a function.

    Before, it may run code of Python that starts it: an exception there ends it in silence.
    """
    (thread,) = (thread for thread in threading.enumerate() if thread.name == name)
    assert thread.ident is not None
    eventually(lambda: function in _functions_of(thread.ident), f"{name} runs {function}")
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    assert raised == 1


def _functions_of(ident: int | None) -> set[str]:
    """Return the names of the functions that a thread runs, each called by the next."""
    frame, found = sys._current_frames().get(ident or 0), set[str]()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found
