"""Which Python ``make`` sets up .venv with, among programs that only print a time as one would."""

import subprocess
import sys
from pathlib import Path

import pytest

from regent.config import fastest_python
from regent.config.fastest_python import fastest, main, seconds_of_work


@pytest.fixture
def pythons(tmp_path: Path) -> tuple[str, str, str]:
    """Make a Python that needs 10 ms, one that needs 9.5 and one that needs 8."""
    paths = []
    for seconds in ("0.010", "0.0095", "0.008"):
        path = tmp_path / f"python-{seconds}"
        path.write_text(f"#!/bin/sh\necho {seconds}\n")
        path.chmod(0o755)
        paths.append(str(path))
    return paths[0], paths[1], paths[2]


def test_a_python_that_is_much_faster_is_taken(pythons: tuple[str, str, str]) -> None:
    slow, _, fast = pythons
    assert fastest(slow, [fast]) == fast


def test_a_python_that_is_hardly_faster_is_not_taken(pythons: tuple[str, str, str]) -> None:
    slow, little_faster, fast = pythons
    assert fastest(slow, [little_faster]) == slow
    assert fastest(fast, [slow]) == fast


def test_a_python_that_cannot_be_used_is_never_taken(
    pythons: tuple[str, str, str], tmp_path: Path
) -> None:
    slow, _, fast = pythons
    assert fastest(str(tmp_path / "none"), [slow]) == slow
    assert fastest("/bin/false", [fast]) == fast
    assert fastest(slow, ["/bin/true"]) == slow
    assert fastest("/bin/false", ["/bin/true"]) is None


def test_the_python_that_runs_this_can_be_used() -> None:
    assert seconds_of_work(sys.executable)


def test_a_python_that_is_too_old_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest_python, "OLDEST", (99, 0))
    assert seconds_of_work(sys.executable) is None


def test_the_python_that_was_asked_for_is_taken_however_slow_it_is(
    pythons: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(pythons[:1])
    assert capsys.readouterr() == (f"{pythons[0]}\n", "")


def test_a_python_that_was_asked_for_and_cannot_be_used_is_refused_in_one_line() -> None:
    script = fastest_python.__file__
    refused = subprocess.run(
        [sys.executable, script, "/bin/false"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.startswith("/bin/false: Python 3.11 or later with venv is needed")
    assert refused.stderr.count("\n") == 1
