"""The output directory of a job is written completely, or not at all."""

import stat
from pathlib import Path

import pytest

from regent.jobs.command import InputError
from regent.jobs.new_directory import new_directory
from tests.jobs.local_files import LOCAL_FILES


def write(target: Path | str, text: str) -> None:
    with new_directory(str(target), LOCAL_FILES) as directory:
        (directory / "file").write_text(text)
        if not text:
            raise RuntimeError("nothing to write")


def test_an_empty_directory_is_used_and_a_failure_leaves_no_files(tmp_path: Path):
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(RuntimeError):
        write(target, "")
    assert list(tmp_path.rglob("*")) == [target]
    write(target, "text")
    assert (target / "file").read_text() == "text"
    assert stat.S_IMODE(target.stat().st_mode) == 0o700, "nobody else reads what a job copies"


def test_missing_parents_are_made_and_removed_after_a_failure(tmp_path: Path):
    with pytest.raises(RuntimeError):
        write(tmp_path / "a" / "b" / "out", "")
    assert not list(tmp_path.iterdir())
    write(tmp_path / "a" / "b" / "out", "text")
    assert (tmp_path / "a" / "b" / "out" / "file").read_text() == "text"


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write to .*: Not a directory"):
        write(tmp_path / "file" / "out", "text")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(InputError, match=r"full exists already"):
        write(tmp_path / "full", "text")
    with pytest.raises(InputError, match="the name of a file or directory is empty"):
        write("", "text")
