"""One test for each case of a conformance table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.tables import OWN_COORDINATOR_TABLES, OWN_TABLES, read_table

ZOOKEEPER_GROUP = "zk_operation"  # also run with a real server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make every case of the tables a test, named after its group and itself."""
    given = metafunc.config.getoption("--cases")
    here = metafunc.config.invocation_params.dir
    tables = OWN_TABLES if given is None else [here / given]
    if {"group", "values"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("group", "values"), list(_cases(tables)))
    if "coordinator_case" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--coordinator-cases")
        files = OWN_COORDINATOR_TABLES if chosen is None else [here / chosen]
        rows = [case for file in files for case in json.loads(file.read_text(encoding="utf-8"))]
        named = [pytest.param(case, id=case.get("name", "nameless")) for case in rows]
        metafunc.parametrize("coordinator_case", named)
    if "zookeeper_case" in metafunc.fixturenames:
        cases = [
            pytest.param(case.values[1], id=case.id)
            for case in _cases(tables)
            if case.values[0] == ZOOKEEPER_GROUP
        ]
        metafunc.parametrize("zookeeper_case", cases)


def _cases(tables: Iterable[Path]) -> Iterator[Any]:
    seen: Counter[str] = Counter()
    for table in tables:
        for group, case in read_table(table):
            name = f"{group}/{case.get('name', 'nameless')}"
            seen[name] += 1
            count = f"#{seen[name]}" if seen[name] > 1 else ""
            yield pytest.param(group, case, id=name + count)
