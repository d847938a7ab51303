"""The table of the coordinators and the log cleaner: one test a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.coordinators.suites import play


def test_coordinator_case(coordinator_case: Mapping[str, Any]) -> None:
    play(coordinator_case)
