"""Replaces itself with a JVM that the kernel kills when the parent process ends.

Run as ``python -I jvm_launcher.py PARENT_PID JAVA ARGUMENT...``. The ZooKeeper server itself would
not notice the end of its parent. The kernel's parent-death signal fires when the *thread* that
started this program ends, so start it on the main thread. Only Linux has this signal: on other
systems the JVM survives a killed parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Replace this process with the JVM, unless the parent has ended."""
    parent_pid = int(arguments[0])
    if sys.platform == "linux":
        # SIGKILL also ends a stopped JVM; ZooKeeper's log survives it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            sys.exit("the process that started this one is gone")
    os.execv(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
