"""Plays the cases of the coordinators. A new suite is a module and a line in ``SUITES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

from tests.conformance.coordinators.clean_suite import CleanSuite
from tests.conformance.coordinators.cleanable_suite import CleanableSuite
from tests.conformance.coordinators.cleanstate_suite import CleanStateSuite
from tests.conformance.coordinators.group_suite import GroupSuite
from tests.conformance.coordinators.hash_suite import HashSuite
from tests.conformance.coordinators.producer_suite import ProducerSuite
from tests.conformance.coordinators.records_suite import RecordsSuite
from tests.conformance.coordinators.suite import ReadMapping, Suite, check
from tests.conformance.coordinators.txn_suite import TxnSuite
from tests.conformance.coordinators.txnindex_suite import TransactionIndexSuite
from tests.conformance.fields import UnknownInCaseError, one_of

SUITES: Final[Mapping[str, Callable[[ReadMapping], Suite]]] = {
    "clean": CleanSuite,
    "cleanable": CleanableSuite,
    "cleanstate": CleanStateSuite,
    "group": GroupSuite,
    "hash": HashSuite,
    "producer": ProducerSuite,
    "records": RecordsSuite,
    "txn": TxnSuite,
    "txnindex": TransactionIndexSuite,
}
_KEYS: Final = frozenset(("group", "name", "src", "given", "when", "expect"))


def play(case: Mapping[str, Any]) -> None:
    """Do the steps of a case, and check what it expects."""
    if case.keys() != _KEYS:
        raise UnknownInCaseError(f"a case has the keys {sorted(_KEYS)}, not {sorted(case)}")
    given, steps = ReadMapping(case["given"]), [ReadMapping(step) for step in case["when"]]
    with closing(one_of(case["group"], SUITES, "the suite")(given)) as suite:
        for step, values in zip(steps, case["when"], strict=True):
            if step["do"] == "check":
                _ = step["expect"]
                check(suite, values["expect"])
            else:
                suite.do(step)
            _require_read(f"the step {step['do']}", step, but="expect.")
        check(suite, case["expect"])
        _require_read("given", given)


def _require_read(what: str, values: ReadMapping, but: str | None = None) -> None:
    unread = [key for key in values.unread() if but is None or not key.startswith(but)]
    if unread:
        raise UnknownInCaseError(f"{what} has unread keys: {unread}")
