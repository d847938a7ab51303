"""The leader epochs of a log (KIP-101), and their file after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.errors import StorageError
from regent.storage.log.leader_epoch_file_cache import LeaderEpochFileCache
from tests.support.durable_files import DurableFiles

FILE = "leader-epoch-checkpoint"
UNKNOWN = (-1, -1)


def epochs_of(directory: Path, *entries: tuple[int, int]) -> LeaderEpochFileCache:
    epochs = LeaderEpochFileCache(directory)
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def entries(epochs: LeaderEpochFileCache) -> list[tuple[int, int]]:
    """Return the entries as the file has them."""
    epochs.save()
    lines = (epochs.directory / FILE).read_text().splitlines()
    assert lines[:2] == ["0", str(len(lines) - 2)]
    return [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines[2:])]


# --- look-ups -------------------------------------------------------------------------------------


def test_an_epoch_ends_where_the_next_one_begins(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path, (2, 10), (4, 25), (7, 40))
    assert epochs.latest_epoch == 7
    ends = {epoch: epochs.end_offset_for(epoch, 50) for epoch in range(-1, 9)}
    assert ends == {
        -1: UNKNOWN,
        0: (0, 10),  # before the first one: where that begins
        1: (1, 10),
        2: (2, 25),
        3: (2, 25),  # unknown: the newest one before it
        4: (4, 40),
        5: (4, 40),
        6: (4, 40),
        7: (7, 50),  # the latest one ends with the log
        8: UNKNOWN,
    }


def test_without_epochs_there_is_no_answer(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path)
    assert epochs.latest_epoch == -1
    assert epochs.end_offset_for(0, 50) == UNKNOWN
    assert epochs.end_offset_for(-1, 50) == UNKNOWN
    assert epochs.epoch_for(0) == -1


def test_every_offset_is_of_the_epoch_that_began_before_it(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path, (2, 10), (4, 25))
    assert [epochs.epoch_for(offset) for offset in (9, 10, 24, 25, 1_000)] == [-1, 2, 2, 4, 4]


# --- changes --------------------------------------------------------------------------------------


def test_the_latest_epoch_keeps_its_first_offset(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path, (2, 10))
    assert not epochs.assign(2, 10)
    assert not epochs.assign(2, 30)
    assert entries(epochs) == [(2, 10)]


@pytest.mark.parametrize(
    ("epoch", "start", "left"),
    [
        (9, 50, [(2, 10), (4, 25), (7, 40), (9, 50)]),
        (9, 40, [(2, 10), (4, 25), (9, 40)]),  # nothing was written in epoch 7
        (9, 30, [(2, 10), (4, 25), (9, 30)]),
        (7, 30, [(2, 10), (4, 25), (7, 30)]),
        (4, 30, [(2, 10), (4, 30)]),
        (1, 0, [(1, 0)]),
    ],
)
def test_entries_that_contradict_a_new_one_are_removed(
    tmp_path: Path, epoch: int, start: int, left: list[tuple[int, int]]
) -> None:
    epochs = epochs_of(tmp_path, (2, 10), (4, 25), (7, 40))
    assert epochs.assign(epoch, start)
    assert entries(epochs) == left


def test_batches_without_an_epoch_begin_none(tmp_path: Path) -> None:
    assert not epochs_of(tmp_path).assign(-1, 0)


@pytest.mark.parametrize(("end", "left"), [(41, 3), (40, 2), (26, 2), (25, 1), (10, 0), (0, 0)])
def test_epochs_from_an_offset_on_are_removed(tmp_path: Path, end: int, left: int) -> None:
    epochs = epochs_of(tmp_path, (2, 10), (4, 25), (7, 40))
    epochs.truncate_from_end(end)
    assert entries(epochs) == [(2, 10), (4, 25), (7, 40)][:left]


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (5, [(2, 10), (4, 25), (7, 40)]),
        (10, [(2, 10), (4, 25), (7, 40)]),
        (11, [(2, 11), (4, 25), (7, 40)]),
        (25, [(4, 25), (7, 40)]),
        (30, [(4, 30), (7, 40)]),
        (100, [(7, 100)]),  # the latest epoch is never forgotten
    ],
)
def test_epochs_before_an_offset_are_removed(
    tmp_path: Path, start: int, left: list[tuple[int, int]]
) -> None:
    epochs = epochs_of(tmp_path, (2, 10), (4, 25), (7, 40))
    epochs.truncate_from_start(start)
    assert entries(epochs) == left


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["assign", "truncate_from_end", "truncate_from_start"]),
            st.integers(-1, 20),
            st.integers(0, 100),
        )
    )
)
def test_epochs_and_offsets_always_grow(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    epochs = LeaderEpochFileCache(tmp_path_factory.getbasetemp())
    epochs.assign(0, 0)
    for step, epoch, offset in steps:
        if step == "assign":
            epochs.assign(epoch, offset)
        else:
            getattr(epochs, step)(offset)
        found = entries(epochs)
        assert found == sorted(found)
        for column in zip(*found, strict=True):
            assert len(set(column)) == len(found)
        again = LeaderEpochFileCache(epochs.directory)
        assert again.load()
        assert again.latest_epoch == epochs.latest_epoch


# --- the file -------------------------------------------------------------------------------------


def test_epochs_are_read_as_they_were_written(tmp_path: Path) -> None:
    epochs_of(tmp_path, (2, 10), (4, 25)).save()
    assert (tmp_path / FILE).read_text() == "0\n2\n2 10\n4 25\n"
    epochs = LeaderEpochFileCache(tmp_path)
    assert epochs.load()
    assert epochs.end_offset_for(3, 99) == (2, 25)
    epochs.assign(5, 30)
    epochs.flush()
    epochs.clear()
    assert epochs.load()
    assert epochs.latest_epoch == 5


def test_the_file_is_not_written_without_a_change(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path, (2, 10))
    epochs.save()
    (tmp_path / FILE).unlink()
    epochs.assign(2, 20)
    epochs.truncate_from_end(50)
    epochs.save()
    assert not (tmp_path / FILE).exists()
    epochs.flush()  # what was saved did not need to reach the disk
    assert (tmp_path / FILE).exists()
    (tmp_path / FILE).unlink()
    epochs.flush()
    assert not (tmp_path / FILE).exists()


def test_writes_of_an_earlier_process_are_flushed_too(tmp_path: Path) -> None:
    epochs_of(tmp_path, (2, 10)).save()  # did not wait for the disk, then the process was killed
    disk = DurableFiles()
    epochs = LeaderEpochFileCache(tmp_path)
    with disk.watched():
        assert epochs.load()
        epochs.flush()
    disk.restore(tmp_path, tmp_path / "after")
    assert (tmp_path / "after" / FILE).exists()


def test_a_missing_file_differs_from_a_file_without_epochs(tmp_path: Path) -> None:
    assert not LeaderEpochFileCache(tmp_path).load()
    epochs = epochs_of(tmp_path, (2, 10))
    epochs.clear()
    epochs.save()
    assert LeaderEpochFileCache(tmp_path).load()


def test_a_file_torn_by_a_crash_is_ignored(tmp_path: Path) -> None:
    epochs_of(tmp_path, (2, 10), (4, 25), (17, 40)).save()
    whole = (tmp_path / FILE).read_bytes()
    for end in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:end])
        epochs = LeaderEpochFileCache(tmp_path)
        assert not epochs.load(), whole[:end]
        assert epochs.latest_epoch == -1


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n",
        "0\n2\n4 25\n2 40\n",  # epochs must grow
        "0\n2\n2 40\n4 25\n",
        "0\n2\n2 40\n2 40\n",
        "0\n1\n2 -10\n",
        "0\n1\n2 x\n",
        "0\n1\n2 10 3\n",
        "\0" * 20,
        "\xff",
    ],
)
def test_an_impossible_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    assert not LeaderEpochFileCache(tmp_path).load()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path / "missing", (2, 10))
    for write in (epochs.save, epochs.flush):
        with pytest.raises(StorageError, match=f"missing/{FILE}"):
            write()
