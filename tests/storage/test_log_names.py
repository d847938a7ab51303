from __future__ import annotations

import pytest

from regent.core.model import TopicPartition
from regent.storage.log_names import (
    STRAY,
    TO_DELETE,
    base_offset_of,
    is_moved,
    log_of_directory,
    out_of_use,
)

HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("t-0", "t", 0),
        ("my-topic-12", "my-topic", 12),
        ("__consumer_offsets-49", "__consumer_offsets", 49),
        ("a.b_c-3", "a.b_c", 3),
        ("t-1-delete-2", "t-1-delete", 2),
        (f"t-1.{HEX}-delete-2", f"t-1.{HEX}-delete", 2),
    ],
)
def test_logs_have_the_names_of_their_partitions(name: str, topic: str, partition: int):
    assert log_of_directory(name) == TopicPartition(topic, partition)
    assert str(TopicPartition(topic, partition)) == name
    assert not is_moved(name)


@pytest.mark.parametrize(
    "name", ["t", "t-", "-0", "t-x", "t-01", "t--1x", "lost+found", "t-0.tmp", "t 1-0", "t-1\n"]
)
def test_other_directories_are_no_logs(name: str):
    assert log_of_directory(name) is None
    assert not is_moved(name)


@pytest.mark.parametrize("kind", ["delete", "stray", "future"])
def test_logs_that_are_not_in_use_are_recognized(kind: str):
    name = f"t-0.{HEX}-{kind}"
    assert is_moved(name)
    assert log_of_directory(name) is None


@pytest.mark.parametrize("suffix", [TO_DELETE, STRAY])
@pytest.mark.parametrize("topic", ["t", "x" * 249])
def test_each_removed_log_gets_a_unique_name(topic: str, suffix: str):
    names = {out_of_use(TopicPartition(topic, 7), suffix) for _ in range(10)}
    assert len(names) == 10
    assert all(is_moved(name) and name.endswith(suffix) and len(name) <= 255 for name in names)


def test_segments_are_named_after_their_base_offsets():
    assert base_offset_of("00000000000000000042.log") == 42
    for name in ("00000000000000000042.index", "42.log", "00000000000000000042.log.deleted"):
        assert base_offset_of(name) is None
