"""Waits: what a terminal shows of them."""

from __future__ import annotations

import pytest

from cli.waiting import Progress
from tests.cli.test_output import on_terminal


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
