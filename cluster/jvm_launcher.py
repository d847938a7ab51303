"""Replaces itself with a JVM that the kernel kills when the parent process ends.

Run as ``python -I jvm_launcher.py PARENT_PID JAVA ARGUMENT...``. A server in a JVM would not notice
the end of its parent. The kernel's parent-death signal fires when the *thread* that
started this program ends, so start it on the main thread. Only Linux has this signal: on other
systems the JVM survives a killed parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def ending_with_this_process(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the command line that runs ``command`` until the thread that starts it ends."""
    launcher = (sys.executable, "-I", "-S", __file__, str(os.getpid()))
    return [*launcher, *map(str, command)]


def main(arguments: list[str]) -> None:
    """Replace this process with the JVM, unless the parent has ended."""
    parent_pid = int(arguments[0])
    if sys.platform == "linux":
        # SIGKILL also ends a stopped JVM; ZooKeeper's log survives it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            sys.exit("the process that started this one is gone")
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
