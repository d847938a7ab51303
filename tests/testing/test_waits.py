"""Every wait has a limit that names what it waited for, and one factor scales all limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regent.testing import waits
from regent.testing.regent_cluster import SESSION_TIMEOUT_MS, _await_ready, _session_timeout_ms
from regent.testing.waits import (
    TIMEOUT_FACTOR_VARIABLE,
    await_end,
    eventually,
    next_line,
    scaled,
)

pytest_plugins = "pytester"

LONG_S = scaled(60)
LOAD = waits._load


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_load", lambda: 0.0)


@pytest.fixture
def silent() -> Iterator[subprocess.Popen[str]]:
    """A process that prints nothing and goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("wait", "problem"),
    [
        (lambda process: next_line(process, "an answer", 0.01), "an answer: not within 0.005 s"),
        (lambda process: await_end(process, "it", 0.01), "it has not ended within 0.005 s"),
        (lambda _: eventually(lambda: 0, "more", 0.01), "more: not within 0.005 s; last: 0"),
        (lambda process: _await_ready(process, "it", 0.01), "it is ready: not within 0.005 s: "),
    ],
)
def test_a_wait_ends_after_its_scaled_limit_and_says_for_what_it_was(
    silent: subprocess.Popen[str],
    wait: Callable[[subprocess.Popen[str]], object],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TIMEOUT_FACTOR_VARIABLE, "0.5")
    with pytest.raises(AssertionError) as late:
        wait(silent)
    assert str(late.value) == problem


def test_sessions_are_scaled_as_far_as_the_server_grants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TIMEOUT_FACTOR_VARIABLE, "2.5")
    assert _session_timeout_ms(SESSION_TIMEOUT_MS) == 5_000
    monkeypatch.setenv(TIMEOUT_FACTOR_VARIABLE, "100")
    assert _session_timeout_ms(SESSION_TIMEOUT_MS) == 60_000


def test_limits_grow_with_the_processes_that_wait_for_a_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(waits, "_load", lambda: 20.0)
    assert scaled(3.0) == 30.0
    assert _session_timeout_ms(SESSION_TIMEOUT_MS) == SESSION_TIMEOUT_MS


def test_the_load_is_that_of_this_moment_or_of_the_last_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = "0.50 0.40 0.30 {}/700 4711\n"
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    for text, load in ((running.format(22), 22.0), (running.format(2), 3.0), ("", 3.0)):
        monkeypatch.setattr(Path, "read_text", lambda _, text=text: text)
        assert LOAD() == load


def test_a_wait_continues_when_the_machine_becomes_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT_FACTOR_VARIABLE, "1")
    looks = iter([False, True])

    def look() -> bool:
        monkeypatch.setattr(waits, "_load", lambda: 1e9)
        return next(looks)

    assert eventually(look, "it is there", timeout_s=1e-6)


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "inf", "much"])
def test_an_invalid_factor_is_refused(factor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT_FACTOR_VARIABLE, factor)
    with pytest.raises(ValueError, match=f"must be a number above 0, not '{factor}'"):
        scaled(1.0)


@pytest.mark.parametrize(
    ("ini", "options", "factor"),
    [("", [], 1), ("3", [], 3), ("3", ["--regent-timeout-factor", "4"], 4)],
)
def test_the_plugin_takes_the_factor_from_an_option_or_an_ini_file(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    ini: str,
    options: list[str],
    factor: int,
) -> None:
    monkeypatch.delenv(TIMEOUT_FACTOR_VARIABLE, raising=False)
    pytester.makeini(f"[pytest]\n{ini and f'regent_timeout_factor = {ini}'}\n")
    pytester.makepyfile(
        f"""
        from regent.testing.waits import scaled
        def test_it(monkeypatch):
            monkeypatch.setattr('regent.testing.waits._load', lambda: 0.0)
            assert scaled(10) == {factor * 10}
        """
    )
    ended = pytester.runpytest_subprocess(*options, timeout=LONG_S)
    ended.assert_outcomes(passed=1)
