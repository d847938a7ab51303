"""``make quick`` finds tests for every module that has some in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quick import ROOT, belonging_to, main


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("core/controller/controller_election.py", "core/controller/test_controller_election.py"),
        ("core/coordinator/record_fields.py", "core/coordinator"),
        ("cli/groups_list.py", "cli/test_groups_list.py"),
        ("tests/records/test_compression.py", "records/test_compression.py"),
    ],
    ids=["with a test file", "imported by others", "a lazy command", "a test file"],
)
def test_a_file_has_its_tests(file: str, first: str) -> None:
    assert belonging_to(Path(file))[0].is_relative_to(ROOT / "tests" / first)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["core/nothing.py"], "core/nothing.py is not a Python file of this checkout"),
        (["/etc/hosts"], "/etc/hosts is not a Python file of this checkout"),
        (["run.py"], "no test imports run.py: make test runs all tests"),
    ],
)
def test_a_file_without_tests_is_refused_in_one_line(
    files: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(files) == 2
    assert capsys.readouterr().err == f"{problem}\n"
