"""The suite ``hash``: the partition of a group or transactional id."""

from __future__ import annotations

from typing import Any

from regent.core.coordinator.partition_for import java_hash, partition_for
from tests.conformance.coordinators.suite import ReadMapping, Step, Suite
from tests.conformance.fields import UnknownInCaseError


class HashSuite(Suite):
    """Two pure functions."""

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        self.given = given
        self.seen: dict[str, int] = {}

    def do(self, step: Step) -> None:
        if step["do"] != "hash":
            raise UnknownInCaseError(step["do"])
        key, partitions = self.given["key"], self.given["partitions"]
        self.seen = {"hash": java_hash(key), "partition": partition_for(key, partitions)}

    def see(self, key: str, expected: Any) -> Any:
        return self.seen[key]
