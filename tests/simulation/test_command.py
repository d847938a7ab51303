"""``python -m tests.simulation`` itself: its processes, and how it ends when one of them does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from regent.testing.waits import await_end, eventually

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.simulation", "--jobs", "2")


def test_its_processes_run_every_seed():
    ended = subprocess.run(
        [*COMMAND, "--seeds", "2"], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "2 of 2 histories, 0 failed" in ended.stderr


def test_a_killed_process_ends_the_run_with_one_line():
    with subprocess.Popen(
        [*COMMAND, "--seeds", "100000"], cwd=ROOT, text=True, stderr=subprocess.PIPE
    ) as run:
        try:
            workers = eventually(lambda: _workers(run.pid), "its processes", 60)
            os.kill(workers[0], signal.SIGKILL)
            said = await_end(run, "a run without one of its processes", 60)
        finally:
            run.kill()
    assert "a process that runs histories was killed" in said.splitlines()[-1]
    assert run.returncode == 1
    eventually(lambda: not any(map(_is_running, workers)), "the end of its processes", 60)


def _workers(pid: int) -> list[int]:
    """Return the two processes that run histories, once both have begun; none before."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [int(child) for child in children if _is_running(int(child))]
    return workers if len(workers) == 2 else []


def _is_running(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
