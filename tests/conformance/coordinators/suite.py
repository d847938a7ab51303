"""What the suites have in common: a machine that does steps, and is compared with expectations.

A key of a case that nothing reads is an error: the runner does not check what it does not read, so
such a case must not pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, TypeAlias

from regent.core.model import TopicPartition
from tests.conformance.fields import UnknownInCaseError, WholeMap

_OUTCOMES = ("error", "result")
_SUCCESSES = ("NONE", "ok", "yes", "no")


class ReadMapping(Mapping[str, Any]):
    """An object of a case that knows which of its keys were read, and of the objects in it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {key: _readable(value) for key, value in values.items()}
        self._unread = set(self._values)

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        self._unread.discard(key)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def unread(self) -> list[str]:
        """Return the keys that were not read; ``a.b`` is the key ``b`` of ``a``."""
        inner = (f"{key}.{name}" for key in self for name in _unread(self._values[key]))
        return sorted([*self._unread, *inner])


def _readable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ReadMapping(value)
    return [_readable(element) for element in value] if isinstance(value, list) else value


def _unread(value: Any) -> list[str]:
    if isinstance(value, ReadMapping):
        return value.unread()
    elements = value if isinstance(value, list) else ()
    return [name for element in elements for name in _unread(element)]


Step: TypeAlias = ReadMapping


class SeenSet(list[Any]):
    """Something seen whose order has no meaning."""


def partition_of(name: str) -> TopicPartition:
    """The partition that a case writes as ``topic-index``."""
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def named(topic_partition: TopicPartition) -> str:
    """A partition as a case writes it."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


class Suite(ABC):
    """A machine, made from ``given``, that does the steps of a case one after the other."""

    def __init__(self) -> None:
        self.answers: dict[str, Mapping[str, Any]] = {}
        self.asked: list[str] = []
        self.undo = ExitStack()

    def close(self) -> None:
        """Release what the machine has taken."""
        self.undo.close()

    @abstractmethod
    def do(self, step: Step) -> None:
        """Do one step."""

    def see(self, key: str, expected: Any) -> Any:
        """What the machine has for a key of ``expect``; it may look at what is wanted."""
        if key == "answers":
            return self.answers
        if key == "pending":
            return [label for label in self.asked if label not in self.answers]
        raise UnknownInCaseError(key)

    def resolved(self, expected: Any) -> Any:
        """What is expected, with the names that stand for something replaced by it."""
        return expected

    def ask(self, step: Step) -> None:
        """Note that a step will be answered."""
        if "as" in step:
            self.asked.append(step["as"])

    def answer(self, step: Step, **fields: Any) -> None:
        """Note the answer to a step: at most one, and a success if nobody looks at it."""
        label = step.get("as")
        if label is None:
            for outcome in _OUTCOMES:
                assert fields.get(outcome, "NONE") in _SUCCESSES, (dict(step), fields)
            return
        assert label not in self.answers, f"{label} is answered twice"
        self.answers[label] = fields


def check(suite: Suite, expect: Mapping[str, Any]) -> None:
    """Compare what is expected, and nothing else."""
    for key, value in expect.items():
        expected = suite.resolved(value)
        compare(key, expected, suite.see(key, expected))


def compare(where: str, expected: Any, seen: Any) -> None:
    """Compare the keys that are named; of lists, and of whole maps, everything."""
    difference = f"{where}: {seen!r} instead of {expected!r}"
    if isinstance(seen, SeenSet):
        assert sorted(expected) == sorted(seen), difference
    elif isinstance(expected, list) and isinstance(seen, list):
        assert len(expected) == len(seen), difference
        for index, (one, other) in enumerate(zip(expected, seen, strict=True)):
            compare(f"{where}[{index}]", one, other)
    elif not isinstance(expected, Mapping) or isinstance(seen, WholeMap):
        assert expected == seen, difference
    else:
        assert isinstance(seen, Mapping), difference
        for key, value in expected.items():
            if key not in seen:
                raise UnknownInCaseError(f"{where} has no {key}: {seen!r}")
            compare(f"{where}.{key}", value, seen[key])
