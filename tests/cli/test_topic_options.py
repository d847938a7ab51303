"""What all commands about topics do with names."""

from __future__ import annotations

import pytest

from tests.support.fake_cluster import FakeCluster, failing


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "create", ""),
        ("topics", "describe", ""),
        ("topics", "describe", "--topic", ""),
        ("topics", "alter", "", "--partitions", "2"),
        ("topics", "config", ""),
        ("topics", "delete", "t", "", "--if-exists"),
        ("produce", ""),
        ("consume", ""),
    ],
)
def test_an_empty_name_is_refused(local: FakeCluster, command: tuple[str, ...]) -> None:
    local.put_topic("t", {0: (0,)})

    assert failing(local.run(*command)) == "topic '' is empty"

    assert "/admin/delete_topics/t" not in local.writes
