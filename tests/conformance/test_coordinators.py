"""One test for each conformance case of the coordinators, of ``--coordinator-cases`` or our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.coordinators.group_suite import GroupSuite
from tests.conformance.coordinators.hash_suite import HashSuite
from tests.conformance.coordinators.producer_suite import ProducerSuite
from tests.conformance.coordinators.records_suite import RecordsSuite
from tests.conformance.coordinators.suite import Suite, check
from tests.conformance.coordinators.suites import SUITES as OF_THE_CLEANER
from tests.conformance.coordinators.suites import play
from tests.conformance.coordinators.txn_suite import TxnSuite
from tests.conformance.coordinators.txnindex_suite import TransactionIndexSuite

OWN_CASES = Path(__file__).parent / "coordinator_cases.json"
SUITES: Mapping[str, Callable[[Mapping[str, Any]], Suite]] = {
    "group": GroupSuite,
    "hash": HashSuite,
    "producer": ProducerSuite,
    "records": RecordsSuite,
    "txn": TxnSuite,
    "txnindex": TransactionIndexSuite,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--coordinator-cases")
    path = OWN_CASES if given is None else metafunc.config.invocation_params.dir / given
    if "coordinator_case" in metafunc.fixturenames:
        metafunc.parametrize("coordinator_case", list(_cases(path)))


def _cases(path: Path) -> Iterator[Any]:
    for case in json.loads(path.read_text(encoding="utf-8")):
        yield pytest.param(case, id=case["name"])


def test_the_coordinators_do_what_the_case_says(coordinator_case: Mapping[str, Any]):
    if coordinator_case["group"] in OF_THE_CLEANER:
        play(coordinator_case)
        return
    suite = SUITES[coordinator_case["group"]](coordinator_case["given"])
    for step in coordinator_case["when"]:
        if step["do"] == "check":
            check(suite, step["expect"])
        else:
            suite.do(step)
    check(suite, coordinator_case["expect"])
