"""One test for each case of a conformance table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.tables import OWN_TABLES, read_table

ZOOKEEPER_GROUP = "zk_operation"  # also run with a real server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make every case of the tables a test, named after its group and itself."""
    given = metafunc.config.getoption("--cases")
    here = metafunc.config.invocation_params.dir
    tables = OWN_TABLES if given is None else [here / given]
    if {"group", "values"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("group", "values"), list(_cases(tables)))
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
