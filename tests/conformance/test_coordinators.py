"""One test for each conformance case of the coordinators, of ``--coordinator-cases`` or our own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.coordinators.play import play

OWN_TABLES = [
    Path(__file__).parent / name
    for name in ("coordinator_cases.json", "coordinator_extra_cases.json")
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--coordinator-cases")
    tables = OWN_TABLES if given is None else [metafunc.config.invocation_params.dir / given]
    if "coordinator_case" in metafunc.fixturenames:
        metafunc.parametrize("coordinator_case", list(_cases(tables)))


def _cases(tables: Iterable[Path]) -> Iterator[Any]:
    for table in tables:
        for case in json.loads(table.read_text(encoding="utf-8")):
            yield pytest.param(case, id=case["name"])


def test_the_coordinators_do_what_the_case_says(coordinator_case: Mapping[str, Any]):
    play(coordinator_case)
