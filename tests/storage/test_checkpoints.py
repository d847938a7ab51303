"""Checkpoint files are read as written, and refused if they are incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.errors import BadDataError, StorageError
from regent.core.model import TopicPartition
from regent.storage.checkpoints import (
    HIGH_WATERMARKS,
    read_offsets,
    read_topic_id,
    write_offsets,
    write_topic_id,
)

TOPIC_ID = "Yx3F9Jk0T1-abcdefghij_"
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=20)
OFFSETS = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)
)


@settings(deadline=None, max_examples=50)
@given(offsets=OFFSETS)
def test_offsets_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[TopicPartition, int]
) -> None:
    path = tmp_path_factory.getbasetemp() / HIGH_WATERMARKS
    write_offsets(path, offsets)
    assert read_offsets(path) == offsets


def test_offsets_are_lines_as_kafka_writes_them(tmp_path: Path) -> None:
    path = tmp_path / HIGH_WATERMARKS
    write_offsets(path, {TopicPartition("foo", 0): 17, TopicPartition("bar-1", 12): 0})
    assert path.read_text() == "0\n2\nfoo 0 17\nbar-1 12 0\n"


def test_without_a_file_there_are_no_offsets(tmp_path: Path) -> None:
    assert read_offsets(tmp_path / HIGH_WATERMARKS) == {}


def test_a_checkpoint_torn_by_a_crash_is_refused(tmp_path: Path) -> None:
    path = tmp_path / HIGH_WATERMARKS
    write_offsets(path, {TopicPartition("foo", i): 1_000 + i for i in range(12)})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(BadDataError, match=HIGH_WATERMARKS):
            read_offsets(path)


@pytest.mark.parametrize(
    "text",
    [
        "1\n1\nfoo 0 17\n",
        "0\n2\nfoo 0 17\n",
        "0\n1\nfoo 0\n",
        "0\n1\nfoo 0 17 1\n",
        "0\n1\nfoo  17\n",
        "0\n1\nfoo 0 -1\n",
        "0\n1\nfoo 0 1_7\n",
        "0\n1\nfoo 0 99999999999999999999\n",
        "0\nmany\nfoo 0 17\n",
        "0\n1\nfoo 0 \xb2\n",
        "\0" * 30,
    ],
)
def test_a_file_with_another_format_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / HIGH_WATERMARKS
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BadDataError, match=HIGH_WATERMARKS) as raised:
        read_offsets(path)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_or_written_is_a_failure_of_the_directory(
    tmp_path: Path,
) -> None:
    with pytest.raises(StorageError, match=str(tmp_path)):
        read_offsets(tmp_path)
    with pytest.raises(StorageError, match="missing"):
        write_offsets(tmp_path / "missing" / HIGH_WATERMARKS, {})


# --- the topic id of a log ------------------------------------------------------------------------


def test_the_topic_id_of_a_log_is_stored(tmp_path: Path) -> None:
    assert read_topic_id(tmp_path) is None
    write_topic_id(tmp_path, TOPIC_ID)
    assert read_topic_id(tmp_path) == TOPIC_ID
    assert (tmp_path / "partition.metadata").read_text() == f"version: 0\ntopic_id: {TOPIC_ID}"


def test_metadata_that_ends_with_a_new_line_is_understood(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    assert read_topic_id(tmp_path) == TOPIC_ID


def test_metadata_torn_by_a_crash_is_refused(tmp_path: Path) -> None:
    write_topic_id(tmp_path, TOPIC_ID, is_synced=False)
    whole = (tmp_path / "partition.metadata").read_bytes()
    for end in range(len(whole)):
        (tmp_path / "partition.metadata").write_bytes(whole[:end])
        with pytest.raises(BadDataError, match=r"partition\.metadata"):
            read_topic_id(tmp_path)
