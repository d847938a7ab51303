"""``python -m bench.measured_broker``: a broker whose pauses are noted; else it is the real one.

Its arguments are those of ``regent broker``. Each line on standard input is answered by a line on
standard output: the pauses since the last one. The process ends with its standard input. Without
arguments there is no broker: the pauses are those of a process that does nothing.

With the variable ``BENCH_PROFILE`` the controller's events are profiled into that file.
"""

from __future__ import annotations

import cProfile
import json
import os
import signal
import sys
import threading

from bench.pauses import PauseWatch
from regent.cli.broker import broker
from regent.core.controller.controller import Controller
from regent.core.controller.effects import Effect
from regent.core.controller.events import ControllerEvent

PROFILE = "BENCH_PROFILE"


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
