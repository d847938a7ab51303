"""The conformance table: what Kafka's own tests say a controller does, a test for each case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.groups import play


def test_case(group: str, values: Mapping[str, Any]) -> None:
    play(group, values)
