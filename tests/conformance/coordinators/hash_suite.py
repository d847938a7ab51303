"""The suite ``hash``: the partition of a group or transactional id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regent.core.coordinator.partition_for import java_hash, partition_for
from tests.conformance.coordinators.suite import Step, Suite


class HashSuite(Suite):
    """Two pure functions."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.given = given

    def do(self, step: Step) -> None:
        assert step["do"] == "hash"

    def see(self, key: str, expected: Any) -> Any:
        if key == "hash":
            return java_hash(self.given["key"])
        return partition_for(self.given["key"], self.given["partitions"])
