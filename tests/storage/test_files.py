"""A reader of a file that is being replaced sees the old content or the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.core.errors import StorageError
from regent.storage.files import overwrite, write_atomically


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    write_atomically(file, b"first")
    with file.open("rb") as reader:
        write_atomically(file, b"second")
        assert reader.read() == b"first", "an open reader keeps the old content"
    assert file.read_bytes() == b"second"
    assert [f.name for f in tmp_path.iterdir()] == ["checkpoint"]


def test_the_temporary_file_of_a_crash_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.tmp").write_bytes(b"half a fi")
    write_atomically(tmp_path / "checkpoint", b"whole")
    assert [f.name for f in tmp_path.iterdir()] == ["checkpoint"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"missing/checkpoint: No such file"):
        write_atomically(tmp_path / "missing" / "checkpoint", b"")


def test_a_file_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    for data in (b"first", b"a longer one", b"short", b""):
        overwrite(file, data)
        assert file.read_bytes() == data
    with pytest.raises(StorageError, match=r"missing/checkpoint: No such file"):
        overwrite(tmp_path / "missing" / "checkpoint", b"")
