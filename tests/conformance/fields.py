"""A JSON object of which every key must be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from regent.core.model import (
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)

_REQUIRED = object()
_FILLERS = (
    "a all also an and are as at be by for has in is it its of on or that the then to was with"
)
_NAME = re.compile(r"[\w.-]+", re.ASCII)


class UnknownInCaseError(AssertionError):
    """The case contains something that its runner does not understand."""


class WholeMap(dict[str, Any]):
    """Something seen that must be expected as a whole, not only by some of its keys."""


class Fields:
    """Hands out the values of an object; an unread key at the end is an error.

    The runner does not check a key that it does not read, so the case must not pass.
    """

    def __init__(self, values: Mapping[str, Any] | None, where: str) -> None:
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            raise UnknownInCaseError(f"{where} is not an object: {values!r}")
        self._values = dict(values)
        self._unread = set(self._values)
        self._where = where

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._unread:
            raise UnknownInCaseError(f"{self._where}: unread keys: {sorted(self._unread)}")

    def keys(self) -> set[str]:
        """Return all keys."""
        return set(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return the value of ``key``."""
        self._unread.discard(key)
        if key in self._values:
            return self._values[key]
        if default is _REQUIRED:
            raise UnknownInCaseError(f"{self._where}: {key} is missing")
        return default

    def nested(self, key: str) -> Fields:
        """Return the object of ``key``; empty if there is none."""
        return Fields(self.take(key, {}), f"{self._where}.{key}")

    def expected(self, key: str) -> Iterator[Any]:
        """Yield the value of ``key`` if it exists: ``for x in fields.expected("leader")``."""
        if key in self._values:
            yield self.take(key)

    def matching(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Yield the rest of each key with ``prefix``, and its value."""
        for key in sorted(self._values):
            if key.startswith(prefix):
                yield key.removeprefix(prefix), self.take(key)

    def rest(self) -> dict[str, Any]:
        """Return everything unread, where the keys themselves are data."""
        left = {key: self._values[key] for key in self._values if key in self._unread}
        self._unread.clear()
        return left


class Case(Fields):
    """One case; ``meaning`` distinguishes cases with the same keys: name and upstream test."""

    def __init__(self, group: str, values: Mapping[str, Any]) -> None:
        super().__init__(values, group)
        self.name = str(self.take("name"))
        self.source = str(self.take("src", ""))
        self.meaning = f"{self.name} {self.source}".lower()
        for silent in ("row", "provenance", "note"):
            self.take(silent, None)


def one_of(value: Any, choices: Mapping[Any, Any], what: str) -> Any:
    """Return the meaning of ``value``."""
    try:
        return choices[value]
    except (KeyError, TypeError):
        raise UnknownInCaseError(
            f"{what} is {value!r}; known are {sorted(map(str, choices))}"
        ) from None


def check_words(text: Any, what: str, known: str) -> None:
    """Raise ``UnknownInCaseError`` if a text has a word that is not one of ``known``."""
    words = re.findall(r"[\w./'-]+", str(text).lower())
    unknown = sorted(set(words) - set(f"{known} {_FILLERS}".split()))
    if unknown or not words:
        raise UnknownInCaseError(f"{what}: unknown words {' '.join(unknown)!r} of {text!r}")


def partition(name: str) -> TopicPartition:
    """Return the partition ``topic-3``; a name without a number is a topic with one partition."""
    if not _NAME.fullmatch(str(name)):
        raise UnknownInCaseError(f"{name!r} is no name of a partition")
    topic, dash, number = name.rpartition("-")
    if dash and number.isdecimal():
        return TopicPartition(topic, int(number))
    return TopicPartition(name, 0)


def is_called_unknown(name: str) -> bool:
    """Whether the name of a topic or a partition means an absent one."""
    return re.search(r"unknown|absent|missing|no[-_]?such|non[-_]?exist", name.lower()) is not None


def assignment(values: Any) -> ReplicaAssignment:
    """Return a list of replicas, or an object that also has added and removed ones."""
    if isinstance(values, Mapping):
        with Fields(values, "assignment") as fields:
            return ReplicaAssignment(
                tuple(fields.take("replicas")),
                tuple(fields.take("adding", ())),
                tuple(fields.take("removing", ())),
            )
    return ReplicaAssignment(tuple(values))


def leadership(
    values: Mapping[str, Any], controller_epoch: int, where: str = "leadership"
) -> LeaderIsrAndControllerEpoch:
    """Return a leadership in the notation of the cases."""
    with Fields(values, where) as fields:
        return LeaderIsrAndControllerEpoch(
            LeaderAndIsr(
                fields.take("leader"),
                tuple(fields.take("isr")),
                fields.take("leader_epoch", 0),
                fields.take("zk_version", 0),
            ),
            fields.take("controller_epoch", controller_epoch),
        )


def shown(leader_and_isr: LeaderAndIsr | None) -> dict[str, Any] | None:
    """Return a leadership in the words of the cases."""
    if leader_and_isr is None:
        return None
    return {
        "leader": leader_and_isr.leader,
        "isr": list(leader_and_isr.isr),
        "leader_epoch": leader_and_isr.leader_epoch,
        "zk_version": leader_and_isr.partition_epoch,
    }


def assert_leadership(
    actual: LeaderAndIsr | None,
    expected: Mapping[str, Any] | None,
    controller_epoch: int | None = None,
) -> None:
    """Compare the fields of a leadership that a case gives."""
    if expected is None or actual is None:
        assert shown(actual) == expected
        return
    now = shown(actual)
    assert now is not None
    if controller_epoch is not None:
        now["controller_epoch"] = controller_epoch
    unknown = set(expected) - set(now)
    if unknown:
        raise UnknownInCaseError(f"a leadership has no {sorted(unknown)}")
    assert {key: now[key] for key in expected} == dict(expected)


def assert_assignment(actual: ReplicaAssignment, fields: Fields) -> None:
    """Compare an assignment with the one that a case expects."""
    for replicas in fields.expected("replicas"):
        assert list(actual.replicas) == replicas
    for adding in fields.expected("adding"):
        assert list(actual.adding_replicas) == adding
    for removing in fields.expected("removing"):
        assert list(actual.removing_replicas) == removing
    for target in fields.expected("target"):
        assert list(actual.target_replicas) == target
    for being_reassigned in fields.expected("being_reassigned"):
        assert actual.is_being_reassigned is being_reassigned
