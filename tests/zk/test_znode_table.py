"""The table of znodes agrees with itself and with Kafka's ``ZkData.scala``."""

from __future__ import annotations

import pytest

from regent.zk.znodes import (
    PERSISTENT_PATHS,
    ZNODES,
    ConfigEntityZNode,
)
from tests.support.znode_table import rows_of


def test_each_row_has_a_path_of_its_own_below_another_row() -> None:
    for row in ZNODES:
        assert rows_of(row.PATH) == [row.PATH]
        parent = row.PATH.rpartition("/")[0]
        assert parent == "" or rows_of(parent) == [parent], row.PATH


def test_a_path_has_the_names_that_it_was_made_of() -> None:
    for row in ZNODES:
        names = [f"n{number}" for number in range(row.PATH.count("<"))]
        assert row.names(row.path(*names)) == tuple(names)
        assert row.names(row.path(*names) + "/x") is None


def test_a_starting_broker_creates_znodes_of_the_table() -> None:
    assert [path for path in PERSISTENT_PATHS if rows_of(path) != [path]] == []


@pytest.mark.parametrize("kind", ["topics", "brokers", "users", "clients", "ips"])
def test_each_configuration_is_a_row(kind: str) -> None:
    assert len(rows_of(ConfigEntityZNode.path(kind, "<default>"))) == 1
