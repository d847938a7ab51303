"""Waits: how they pause, and what a terminal shows of them."""

from __future__ import annotations

import pytest

from cli.waiting import Progress, pauses
from tests.cli.test_output import on_terminal


def test_pauses_grow_and_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("cli.waiting.time.sleep", sleep)
    monkeypatch.setattr("cli.waiting.time.monotonic", lambda: now[0])

    assert len(list(pauses(deadline=103.0))) == len(slept) + 1
    assert slept[:-1] == sorted(slept[:-1])
    assert max(slept) == 0.5
    assert sum(slept) == pytest.approx(3.0)


def test_without_time_there_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.waiting.time.sleep", None)

    assert len(list(pauses(deadline=0.0))) == 1


def test_elsewhere_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("moving", 3, "partitions") as progress:
        progress.remain(1)

    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_how_much_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, "stderr")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    with Progress("moving", 3, "partitions") as progress:
        assert "moving: 3/3 partitions remain" in terminal.text
        progress.remain(1)

    assert "moving: 1/3 partitions remain" in terminal.text
    assert terminal.text.endswith("\x1b[2K")  # the line is cleared: only the result stays
