"""Progress of waits on a terminal and elsewhere."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Sequence
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from regent.cli.waiting import Explained, Progress, Waiting
from regent.core.errors import RegentError
from regent.testing.waits import scaled
from tests.cli.test_output import on_terminal
from tests.support.fake_cluster import FakeCluster


def test_without_a_terminal_no_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("moving", 3, "partitions") as progress:
        progress.remain(1)

    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_the_remaining_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, "stderr")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    with Progress("moving", 3, "partitions") as progress:
        assert "moving: 3/3 partitions remain" in terminal.text
        progress.remain(1)

    assert "moving: 1/3 partitions remain" in terminal.text
    assert terminal.text.endswith("\x1b[2K")  # the line is cleared: only the result stays


# --- time -----------------------------------------------------------------------------------------


class Stderr(io.StringIO):
    """Passes on what is written; ``is_terminal`` is the answer of ``isatty``."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.written: SimpleQueue[str] = SimpleQueue()
        self.isatty = lambda: is_terminal  # type: ignore[method-assign]

    def write(self, text: str) -> int:
        length = super().write(text)
        if text:  # click writes an empty text to test for binary streams
            self.written.put(text)
        return length


def stderr(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> Stderr:
    """Replace stderr, and let the clock advance by a second at each call."""
    stream = Stderr(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    clock = itertools.count()
    monkeypatch.setattr(
        "regent.cli.waiting.time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    return stream


def test_on_a_terminal_one_line_counts_and_is_cleared_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = stderr(monkeypatch, is_terminal=True).written

    with Waiting(first_s=0.0) as waiting:
        waiting.say("Spark is starting")
        assert written.get(timeout=scaled(10)) == "\r\x1b[KSpark is starting (1 s)"
        waiting.say("Spark is warming up")
        assert written.get(timeout=scaled(10)) == "\r\x1b[KSpark is warming up (2 s)"
    assert written.get(timeout=scaled(10)) == "\r\x1b[K"


def test_without_a_terminal_there_is_a_line_in_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    written = stderr(monkeypatch, is_terminal=False).written

    with Waiting(first_s=0.0, line_every_s=0.0) as waiting:
        waiting.say("Spark is starting")
        assert written.get(timeout=scaled(10)) == "Spark is starting (1 s)\n"
        assert written.get(timeout=scaled(10)) == "Spark is starting (2 s)\n"


def test_a_short_wait_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = stderr(monkeypatch, is_terminal=True).written

    with Waiting(first_s=3600.0) as waiting:
        waiting.say("placing new topics")

    assert written.empty()


# --- reasons --------------------------------------------------------------------------------------


def test_a_reason_is_printed_after_a_moment_and_when_it_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reasons = 0.0, ["there is no controller"]
    monkeypatch.setattr("regent.cli.waiting.time", SimpleNamespace(monotonic=lambda: now))
    explained = Explained("nothing comes", lambda: list(reasons), first_s=2, every_s=5)

    def said_at(at: float) -> str:
        nonlocal now
        now = at
        explained.check()
        return capsys.readouterr().err

    assert said_at(1.9) == ""
    assert said_at(2.1) == "regent: nothing comes: there is no controller\n"
    assert said_at(9) == "", "it was said"
    reasons[0] = "broker 2 is down"
    assert said_at(10) == "", "it was looked for lately"
    assert said_at(15) == "regent: nothing comes: broker 2 is down\n"
    explained.heard()
    reasons[0] = "another"
    assert said_at(16) == ""
    assert explained.because() == "; another"


def test_an_unknown_reason_is_not_printed() -> None:
    def fail() -> list[str]:
        raise RegentError("ZooKeeper does not answer")

    assert Explained("nothing comes", fail).because() == ""


@pytest.mark.parametrize(
    "words",
    [
        ("produce", "t", "--timeout-ms"),
        ("groups", "list", "--timeout-ms"),
        ("produce", "t", "--partition"),
        ("consume", "t", "--partition"),
        ("topics", "alter", "t", "--partitions"),
        ("topics", "create", "t", "--partitions"),
        ("topics", "create", "t", "--replication-factor"),
    ],
    ids=" ".join,
)
def test_a_number_that_no_request_can_have_is_a_usage_error(
    cluster: FakeCluster, words: Sequence[str]
) -> None:
    result = cluster.run(*words, "3000000000")
    assert result.exit_code == 2
    assert "3000000000 is not in the range" in result.stderr
