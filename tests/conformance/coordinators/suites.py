"""The suites of the table of the coordinators: one module for each kind of machine.

A suite is a function from what is ``given`` to a ``Player``. A new suite is a module and a line in
``SUITES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from tests.conformance.coordinators import clean, cleanable, cleanstate
from tests.conformance.fields import Case, Fields, UnknownInCaseError, WholeMap, one_of


class Player(Protocol):
    """A machine in the state of a case."""

    def do(self, verb: str, step: Fields) -> Mapping[str, Any]:
        """Do a step; return the fields of its answer, with ``error`` or ``result`` if it failed."""
        ...

    def see(self, key: str) -> object:
        """Return what is seen of the machine under a key of ``expect``."""
        ...


Suite: TypeAlias = Callable[[Fields], AbstractContextManager[Player]]

SUITES: Mapping[str, Suite] = {
    "clean": clean.play,
    "cleanable": cleanable.play,
    "cleanstate": cleanstate.play,
}
_SUCCESSES = ("NONE", "ok", "yes", "no")


def play(values: Mapping[str, Any]) -> None:
    """Play one case and check what it expects."""
    with Case("coordinators", values) as case:
        suite = one_of(case.take("group"), SUITES, "the suite")
        steps, expected = case.take("when"), case.take("expect")
        with case.nested("given") as given, suite(given) as player:
            given.__exit__(None, None, None)  # every key must be read before the first step
            answers: dict[str, Mapping[str, Any]] = {}
            for step in steps:
                _take_step(player, step, answers)
            _check(player, expected, answers)


def _take_step(
    player: Player, values: Mapping[str, Any], answers: dict[str, Mapping[str, Any]]
) -> None:
    with Fields(values, "step") as step:
        verb, label = step.take("do"), step.take("as", None)
        if verb == "check":
            _check(player, step.take("expect"), answers)
            return
        answer = player.do(verb, step)
        if label is not None:
            answers[label] = answer
            return
    for outcome in ("error", "result"):
        assert answer.get(outcome, "NONE") in _SUCCESSES, f"{values}: {answer}"


def _check(
    player: Player, expected: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]]
) -> None:
    for key, value in expected.items():
        if key != "answers":
            _compare(key, value, player.see(key))
            continue
        for label, fields in value.items():
            if label not in answers:
                raise UnknownInCaseError(f"there is no answer {label}")
            _compare(f"answer {label}", fields, answers[label])


def _compare(where: str, expected: object, seen: object) -> None:
    """Compare the named keys of objects, and everything else as a whole."""
    if not isinstance(expected, Mapping) or isinstance(seen, WholeMap):
        assert seen == expected, f"{where}: {seen!r} instead of {expected!r}"
        return
    assert isinstance(seen, Mapping), f"{where}: {seen!r} instead of {expected!r}"
    for key, value in expected.items():
        if key not in seen:
            raise UnknownInCaseError(f"{where} has no {key}")
        _compare(f"{where}.{key}", value, seen[key])
