"""The process that would notice a broker's death is there, whatever happens to it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from regent.cluster.guardian import Guardian
from regent.testing.waits import eventually, pause_process
from regent.zk.client.connection import SessionCredentials

NOTES_DOWN = """
import os, sys, time
with open({notes!r}, "a") as notes:
    print("started", os.getpid(), time.monotonic(), file=notes, flush=True)
    for line in sys.stdin if {reads} else ():
        print(line.strip(), file=notes, flush=True)
        if line == "dismiss\\n":
            break
"""
FIRST, SECOND = SessionCredentials(1, b"one"), SessionCredentials(2, b"two")


class Program:
    """Runs in the place of ``run.py``, and notes what it is told."""

    def __init__(self, directory: Path, *, reads: bool = True) -> None:
        self.path, self._notes = directory / "program.py", directory / "notes"
        self.path.write_text(NOTES_DOWN.format(notes=str(self._notes), reads=reads))

    def told(self) -> list[list[str]]:
        """Return, for every process in its order, what it was told."""
        told: list[list[str]] = []
        text = self._notes.read_text() if self._notes.exists() else ""
        for line in text.splitlines():
            if line.startswith("started"):
                told.append([])
            else:
                told[-1].append(line)
        return told

    def starts(self) -> list[tuple[int, float]]:
        """Return the process ids and when each began."""
        lines = [line.split() for line in self._notes.read_text().splitlines()]
        return [(int(line[1]), float(line[2])) for line in lines if line[0] == "started"]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def guardian(program: Program) -> Iterator[Guardian]:
    guardian = Guardian("127.0.0.1:1", (sys.executable, str(program.path)))
    guardian.start()
    yield guardian
    guardian.dismiss()


def test_a_guardian_that_dies_is_replaced_and_handed_the_present_session(
    program: Program, guardian: Guardian
) -> None:
    guardian.watch_session(FIRST)
    guardian.watch_session(SECOND)
    eventually(lambda: program.told() == [["session 1 6f6e65", "session 2 74776f"]], "both")
    assert guardian.is_alive
    ((pid, _),) = program.starts()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: program.told()[1:] == [["session 2 74776f"]], "its successor is told")
    assert guardian.is_alive
    assert guardian.replacements == 1
    guardian.dismiss()
    assert program.told()[1] == ["session 2 74776f", "dismiss"]
    assert len(program.starts()) == 2


def test_a_guardian_that_keeps_dying_is_started_more_and_more_seldom(tmp_path: Path) -> None:
    program = Program(tmp_path, reads=False)
    guardian = Guardian("127.0.0.1:1", (sys.executable, str(program.path)))
    guardian.start()
    eventually(lambda: len(program.starts()) >= 5, "five have died")
    guardian.watch_session(FIRST)  # to nobody
    guardian.dismiss()
    times = [started for _, started in program.starts()]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for gap, at_least in zip(gaps[:4], (0.0, 0.1, 0.2, 0.4), strict=True):
        assert gap >= at_least


def test_a_guardian_that_cannot_start_stops_no_process(tmp_path: Path) -> None:
    guardian = Guardian("127.0.0.1:1", (sys.executable, str(tmp_path / "program.py")))
    guardian._command[0] = str(tmp_path / "no-python")
    guardian.start()
    guardian.watch_session(FIRST)
    assert not guardian.is_alive
    guardian.dismiss()


def test_a_dismissed_guardian_leaves_nothing(program: Program, guardian: Guardian) -> None:
    eventually(lambda: program.starts(), "it runs")
    ((pid, _),) = program.starts()
    guardian.dismiss()
    guardian.dismiss()
    assert not guardian.is_alive
    assert not any(thread.name == "guardian" for thread in threading.enumerate())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_guardian_that_does_not_listen_is_ended(program: Program, guardian: Guardian) -> None:
    eventually(lambda: program.starts(), "it runs")
    ((pid, _),) = program.starts()
    pause_process(pid)
    guardian.dismiss()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
