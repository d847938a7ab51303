"""Ctrl-C ends a run of the tests with the list of failures."""

from pathlib import Path

import pytest

pytest_plugins = "pytester"

CONFTEST = Path(__file__).with_name("conftest.py")
TESTS = """
import os, signal, time

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)

def test_that_makes_an_error_of_it():
    try:
        interrupt()
    except KeyboardInterrupt:
        raise ValueError("Answer from Java side is empty")

def test_that_must_not_run():
    raise AssertionError("it ran")
"""
INTERRUPTED_REPORT = """
import os, signal
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "call":
        os.kill(os.getpid(), signal.SIGINT)
    return (yield)
"""


def test_a_test_that_turns_ctrl_c_into_an_error_is_the_last(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(TESTS)
    ended = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    ended.assert_outcomes(failed=1)
    ended.stdout.fnmatch_lines(["FAILED *test_that_makes_an_error_of_it*", "*Interrupted: Ctrl-C*"])
    ended.stdout.no_fnmatch_line("*it ran*")


def test_ctrl_c_inside_of_a_report_loses_none(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(plugin=INTERRUPTED_REPORT)
    pytester.makepyfile(
        "def test_one(): assert False\ndef test_two(): raise AssertionError('it ran')"
    )
    ended = pytester.runpytest_subprocess("-p", "plugin")
    assert ended.ret == pytest.ExitCode.INTERRUPTED
    ended.assert_outcomes(failed=1)
    ended.stdout.no_fnmatch_line("*it ran*")
