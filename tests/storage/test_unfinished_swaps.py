"""Files after crashes of a broker, of Kafka and of Kafka's log cleaner."""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.storage.log.log_loader import complete_swaps
from tests.support.disk_logs import segment_file
from tests.support.record_batches import batch

KINDS = (".log", ".index", ".timeindex")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with segments at 0, 10 and 20."""
    for base_offset in (0, 10, 20):
        write(tmp_path, base_offset)
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n0\n")
    (tmp_path / "00000000000000000010.snapshot").write_bytes(b"")
    return tmp_path


def write(directory: Path, base_offset: int, suffix: str = "", *, next_offset: int = 0) -> None:
    """Write the files of a segment that ends at ``next_offset``."""
    next_offset = next_offset or base_offset + 10
    for kind in KINDS:
        data = kind.encode() + suffix.encode()
        if kind == ".log":
            data = batch(suffix.encode(), base_offset=next_offset - 1)
        segment_file(directory, base_offset, kind + suffix).write_bytes(data)


def left(directory: Path) -> set[str]:
    """Return the names of all files, without the zeros."""
    return {path.name.lstrip("0") for path in directory.iterdir()}


UNTOUCHED = {
    *KINDS,
    *(f"{base}{kind}" for base in ("10", "20") for kind in KINDS),
    "leader-epoch-checkpoint",
    "10.snapshot",
}


def test_a_sound_log_is_unchanged(directory: Path):
    assert complete_swaps(directory) == [0, 10, 20]
    assert left(directory) == UNTOUCHED


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned"])
def test_unfinished_files_are_deleted(directory: Path, suffix: str):
    write(directory, 10, suffix)
    write(directory, 30, suffix)
    assert complete_swaps(directory) == [0, 10, 20]
    assert left(directory) == UNTOUCHED


def test_indexes_without_a_segment_are_deleted(directory: Path):
    segment_file(directory, 20).unlink()
    segment_file(directory, 33, ".txnindex").write_bytes(b"")
    assert complete_swaps(directory) == [0, 10]
    assert left(directory) == UNTOUCHED - {f"20{kind}" for kind in KINDS}


def test_a_cleaned_copy_replaces_its_originals(directory: Path):
    write(directory, 0, ".swap", next_offset=20)
    assert complete_swaps(directory) == [0, 20]
    assert left(directory) == UNTOUCHED - {f"10{kind}" for kind in KINDS}
    assert b".swap" in segment_file(directory, 0).read_bytes()
    assert segment_file(directory, 0, ".index").read_bytes() == b".index.swap"


def test_the_originals_may_be_deleted_already(directory: Path):
    write(directory, 0, ".swap", next_offset=20)
    for base_offset in (0, 10):
        for kind in KINDS:
            segment_file(directory, base_offset, kind).unlink()
    segment_file(directory, 0, ".index.swap").rename(segment_file(directory, 0, ".index"))
    assert complete_swaps(directory) == [0, 20]
    assert b".swap" in segment_file(directory, 0).read_bytes()


def test_an_incomplete_split_is_undone(directory: Path):
    write(directory, 10, ".swap", next_offset=15)
    write(directory, 5, ".cleaned")
    assert complete_swaps(directory) == [0, 10, 20]
    assert left(directory) == UNTOUCHED
    assert b".swap" not in segment_file(directory, 10).read_bytes()


def test_a_second_cleanup_changes_nothing(directory: Path):
    write(directory, 0, ".swap", next_offset=20)
    assert complete_swaps(directory) == complete_swaps(directory)
