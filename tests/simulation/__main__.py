"""Run many seeds on all cores: ``python -m tests.simulation --seeds 20000``, ``make simulate``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures.process import BrokenProcessPool

from tests.simulation.history import run_seeds, shown
from tests.simulation.situations import Situation

INTERRUPTED = 130
SHOWN_EVERY_S = 0.2  # on a terminal
LOGGED_EVERY_S = 60  # elsewhere


def main() -> int:
    """Return the exit code: 0 when all histories hold, 1 when one fails, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="Number of seeds (default: 1000).")
    parser.add_argument("--first", type=int, default=0, help="The first seed (default: 0).")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Default: all cores.")
    parser.add_argument("--show", type=int, metavar="SEED", help="Print one history whole.")
    parser.add_argument("--stop-at", type=int, metavar="LINE", help="With --show: debug from here.")
    options = parser.parse_args()
    if options.show is not None:
        return _show(options.show, options.stop_at)
    seeds = range(options.first, options.first + options.seeds)
    failed: list[int] = []
    met: Counter[Situation] = Counter()
    progress = _Progress(len(seeds))
    try:
        for seed, failure, situations in run_seeds(seeds, options.jobs):
            met.update(situations)
            if failure is not None:
                failed.append(seed)
                progress.clear()
                print(failure, end="\n\n", flush=True)  # noqa: T201 - it is what was asked for
            progress.step(len(failed))
    except KeyboardInterrupt:
        progress.end(failed)
        return INTERRUPTED
    except BrokenProcessPool:
        progress.end(failed)
        where = f"in one of {options.jobs} histories from seed {seeds[progress.done]} on"
        sys.stderr.write(f"a process that runs histories was killed, {where}\n")
        return 1
    _print_situations(met, len(seeds))
    progress.end(failed)
    return 1 if failed else 0


def _show(seed: int, stop_at: int | None) -> int:
    """Print one history with the numbers of its lines."""
    lines, failure = shown(seed, stop_at)
    for number, line in enumerate(lines):
        print(f"{number:5d} {line}")  # noqa: T201
    print(f"seed {seed} holds" if failure is None else failure.splitlines()[0])  # noqa: T201
    return 0 if failure is None else 1


def _print_situations(met: Counter[Situation], histories: int) -> None:
    """Print how many histories met each situation, the rarest last."""
    width = max(len(situation.value) for situation in Situation)
    for situation in sorted(Situation, key=lambda situation: -met[situation]):
        share = 100 * met[situation] / histories
        print(f"{situation.value:{width}} {met[situation]:7d} {share:6.1f} %")  # noqa: T201


class _Progress:
    """A progress line, rewritten on a terminal and printed once a minute elsewhere; a summary."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.done = 0
        self._started = self._shown = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def step(self, failed: int) -> None:
        """Count one finished history."""
        self.done += 1
        now = time.monotonic()
        if now - self._shown >= (SHOWN_EVERY_S if self._is_terminal else LOGGED_EVERY_S):
            self._shown = now
            line = self._sum(failed)
            sys.stderr.write(f"\r\033[K{line}" if self._is_terminal else f"{line}\n")
            sys.stderr.flush()

    def clear(self) -> None:
        """Clear the progress line, so that something else can be printed."""
        if self._is_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def end(self, failed: list[int]) -> None:
        """Write the summary and the seeds that failed."""
        self.clear()
        sys.stderr.write(f"{self._sum(len(failed))}\n")
        if failed:
            sys.stderr.write(f"failing seeds: {' '.join(map(str, sorted(failed)))}\n")

    def _sum(self, failed: int) -> str:
        rate = self.done / max(time.monotonic() - self._started, 0.001)
        return f"{self.done} of {self._total} histories, {failed} failed, {rate:.0f} a second"


if __name__ == "__main__":
    sys.exit(main())
