"""The conformance table: what Kafka's own tests say a controller does, a test for each case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.fields import Case
from tests.conformance.groups import RUNNERS


def test_case(group: str, values: Mapping[str, Any]) -> None:
    assert group in RUNNERS, f"no runner for group {group}; there are {sorted(RUNNERS)}"
    with Case(group, values) as case:
        RUNNERS[group](case)
