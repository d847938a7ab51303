"""The conformance table: one test for each case of Kafka's own tests of the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.conformance.fields import Case
from tests.conformance.groups import play
from tests.conformance.zookeeper import zk_operation
from tests.support.zookeeper_sessions import real_ensemble


def test_case(group: str, values: Mapping[str, Any]) -> None:
    play(group, values)


@pytest.mark.zookeeper
def test_zookeeper_case(zookeeper_case: Mapping[str, Any], zookeeper_address: str) -> None:
    """A real ZooKeeper behaves as the fake one in the same cases."""
    with Case("zk_operation", zookeeper_case) as case:
        zk_operation(case, lambda: real_ensemble(zookeeper_address))
