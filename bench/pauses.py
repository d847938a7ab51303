"""How long the threads of a process could not run: a thread sleeps, and notes how late it wakes.

A late awakening has one of three causes: another thread held the interpreter (its lock, or its
garbage collector), the machine had no processor free, or the machine itself stood still. So a
process that does nothing is watched at the same time: what it suffers, the machine caused.

``python -m bench.pauses`` is a broker whose pauses are noted; its arguments are those of ``regent
broker``. Each line on standard input is answered by a line on standard output: the pauses since the
last one. The process ends with its standard input. Without arguments there is no broker, and the
process does nothing. With the variable ``BENCH_PROFILE`` the controller's events are profiled into
that file.
"""

from __future__ import annotations

import cProfile
import json
import os
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from regent.cli.broker import broker
from regent.core.controller.controller import Controller
from regent.core.controller.effects import Effect
from regent.core.controller.events import ControllerEvent

SLEEP_S: Final = 0.005
_ROOT: Final = Path(__file__).parents[1]
PROFILE: Final = "BENCH_PROFILE"
LIMITS_MS: Final = (10, 50, 200, 1_000)


class PauseWatch:
    """A thread that notes pauses since the last ``take``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset()
        threading.Thread(target=self._run, name="pause-watch", daemon=True).start()

    def take(self) -> dict[str, Any]:
        """Return the longest pause, and how many were longer than each limit, in milliseconds."""
        with self._lock:
            longest, counts = self._longest_ms, self._counts
            self._reset()
        longer = {
            f"over_{limit}_ms": sum(counts[place:]) for place, limit in enumerate(LIMITS_MS, 1)
        }
        return {"longest_ms": round(longest, 1), **longer}

    def _reset(self) -> None:
        self._longest_ms = 0.0
        self._counts = [0] * (len(LIMITS_MS) + 1)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(SLEEP_S)
            late_ms = (time.monotonic() - began - SLEEP_S) * 1000
            with self._lock:
                self._longest_ms = max(self._longest_ms, late_ms)
                self._counts[bisect_left(LIMITS_MS, late_ms)] += 1


class WatchedProcess:
    """``bench.pauses`` as a child, with the options of a broker, or none."""

    def __init__(self, options: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.pauses", *options],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def take_pauses(self) -> dict[str, Any]:
        """Return its pauses since the last call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("pauses\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


def answer_lines() -> None:
    """Answer each line of standard input, then end the process."""
    watch = PauseWatch()
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(watch.take()) + "\n")
        sys.stdout.flush()
    os._exit(0)


def profile_controller(path: str) -> None:
    """Write a profile of all events that the controller handles, after each."""
    profile, handle = cProfile.Profile(), Controller.handle

    def profiled(self: Controller, event: ControllerEvent, now_ms: int) -> list[Effect]:
        profile.enable()
        try:
            return handle(self, event, now_ms)
        finally:
            profile.disable()
            if self.is_active:
                profile.dump_stats(path)

    Controller.handle = profiled  # type: ignore[method-assign]


def main() -> None:
    """Run the broker."""
    # As the broker does itself, but before the first thread: signals must reach its own thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    if len(sys.argv) == 1:
        answer_lines()
    threading.Thread(target=answer_lines, name="bench", daemon=True).start()
    if path := os.environ.get(PROFILE):
        profile_controller(path)
    broker.main(sys.argv[1:], prog_name="measured-broker")


if __name__ == "__main__":
    main()
