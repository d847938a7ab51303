"""The runner itself: nothing a case says may go unread."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.fields import Case, Fields, UnknownInCaseError
from tests.conformance.groups import RUNNERS
from tests.conformance.scenarios import run
from tests.conformance.test_conformance import test_case as play

ELECTION: dict[str, Any] = {"algorithm": "offline", "assignment": [1], "isr": [1], "live": [1]}


def test_an_unknown_group_fails():
    with pytest.raises(AssertionError, match="no runner for group colours"):
        play("colours", {"name": "red"})


def test_a_key_nobody_reads_fails():
    play("leader_election", {"name": "n", "in": ELECTION, "expect": {"leader": 1}})
    for where in ("in", "expect"):
        values: dict[str, Any] = {"name": "n", "in": ELECTION, "expect": {"leader": 1}}
        values[where] = {**values[where], "colour": "red"}
        with pytest.raises(UnknownInCaseError, match="colour"):
            play("leader_election", values)


def test_a_wrong_expectation_fails():
    with pytest.raises(AssertionError):
        play("leader_election", {"name": "n", "in": ELECTION, "expect": {"leader": 2}})


def test_an_unknown_value_fails():
    given = {**ELECTION, "algorithm": "roulette"}
    with pytest.raises(UnknownInCaseError, match="roulette"):
        RUNNERS["leader_election"](Case("g", {"name": "n", "in": given, "expect": {}}))


def test_an_unknown_step_or_broker_fails():
    with pytest.raises(UnknownInCaseError, match="dance"):
        run(["C"], {}, [{"op": "dance"}])
    with pytest.raises(UnknownInCaseError, match="nobody"):
        run(["C"], {}, [{"op": "shutdown", "broker": "nobody"}])


def test_what_never_comes_true_fails():
    with pytest.raises(AssertionError, match="it never came"):
        run(["C"], {}, [{"op": "expect_controller_epoch", "value": 7}])


def test_a_fault_of_something_else_than_brokers_fails():
    for how in ("upgrade to 3.0", "the consumer is paused", "it rains"):
        with pytest.raises(UnknownInCaseError, match="not about brokers"):
            play("fault_mode", {"name": "n", "how": how, "cluster": {"brokers": 3}})


def test_fields_that_were_not_read_are_named():
    with (
        pytest.raises(UnknownInCaseError, match=r"nobody reads \['b'\]"),
        Fields({"a": 1, "b": 2}, "here") as fields,
    ):
        fields.take("a")
