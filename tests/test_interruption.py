"""A signal or the limit of a test ends a run: the test has failed by its name, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.testing.waits import scaled

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[1]
RUN = ("-p", "tests.support.runs", "-p", "no:cacheprovider")
WORKERS = ("-n", "2", "--dist", "loadfile")
TESTS = """
import os, signal, subprocess, sys, tempfile, time
import pytest

@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()
    print("the fixture was torn down")

def test_that_makes_an_error_of_it(child, request):
    tempfile.mkdtemp()
    run = os.getppid() if hasattr(request.config, "workerinput") else os.getpid()
    os.kill(run, signal.{signal})
    try:
        time.sleep(30)
    except BaseException as error:
        raise ValueError("Answer from Java side is empty") from error

def test_that_must_not_run():
    raise AssertionError("it ran")
"""
SIGNAL_IN_A_REPORT = """
import os, signal
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "call":
        os.kill(os.getpid(), signal.SIGINT)
    return (yield)
"""
HANGING = """
import time, pytest

@pytest.mark.timeout(0.1)
def test_that_hangs():
    time.sleep(30)

def test_that_runs():
    pass
"""


@pytest.fixture(autouse=True)
def _our_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*RUN, *arguments, timeout=scaled(60))


@pytest.mark.parametrize("workers", [(), WORKERS], ids=["one process", "two workers"])
@pytest.mark.parametrize(("signal", "reason"), [("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM")])
def test_the_test_in_progress_is_the_last_and_has_failed(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    workers: tuple[str, ...],
    signal: str,
    reason: str,
) -> None:
    pytester.makepyfile(TESTS.replace("{signal}", signal))
    files = pytester.mkdir("files")
    monkeypatch.setenv("TMPDIR", str(files))
    ended = run(pytester, *workers)
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    ended.assert_outcomes(failed=1)
    ended.stdout.fnmatch_lines(["*the fixture was torn down*"])
    ended.stdout.fnmatch_lines(["FAILED *test_that_makes_an_error_of_it*", f"*{reason}*"])
    ended.stdout.no_fnmatch_line("*it ran*")
    assert list(files.iterdir()) == []


def test_a_signal_inside_of_a_report_loses_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(plugin=SIGNAL_IN_A_REPORT)
    pytester.makepyfile(
        "def test_one(): assert False\ndef test_two(): raise AssertionError('it ran')"
    )
    ended = run(pytester, "-p", "plugin")
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    ended.assert_outcomes(failed=1)
    ended.stdout.no_fnmatch_line("*it ran*")


def test_a_test_that_hangs_fails_by_its_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HANGING)
    ended = run(pytester)
    ended.assert_outcomes(failed=1, passed=1)
    ended.stdout.fnmatch_lines(["*Failed: Timeout*", "FAILED *test_that_hangs*"])
