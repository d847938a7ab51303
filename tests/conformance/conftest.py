"""One test for each case of a conformance table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.tables import OWN_TABLES, read_table


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make every case of the tables a test named after its group and itself."""
    if {"group", "values"} <= set(metafunc.fixturenames):
        given = metafunc.config.getoption("--cases")
        here = metafunc.config.invocation_params.dir
        tables = OWN_TABLES if given is None else [here / given]
        metafunc.parametrize(("group", "values"), list(_cases(tables)))


def _cases(tables: Iterable[Path]) -> Iterator[Any]:
    seen: Counter[str] = Counter()
    for table in tables:
        for group, case in read_table(table):
            name = f"{group}/{case.get('name', 'nameless')}"
            seen[name] += 1
            count = f"#{seen[name]}" if seen[name] > 1 else ""
            yield pytest.param(group, case, id=name + count)
