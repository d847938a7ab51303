"""Become a JVM that does not outlive the process that started it.

Run as ``python -I jvm_launcher.py PARENT_PID JAVA ARGUMENT...``; a JVM cannot watch a death pipe.
The kernel's parent-death signal fires when the *thread* that started this program ends, so it must
be started from one that lives as long as its process: the main thread. Elsewhere than on Linux
there is no such signal, and the JVM outlives a killed parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Replace this process by the JVM, unless the parent is gone already."""
    parent_pid = int(arguments[0])
    if sys.platform == "linux":
        # SIGKILL, which a stopped JVM gets too; ZooKeeper's log is made for it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            sys.exit("the process that started this one is gone")
    os.execv(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
