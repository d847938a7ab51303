"""What the suites have in common: a machine that does steps, and is compared with expectations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

from regent.core.model import TopicPartition

Step: TypeAlias = Mapping[str, Any]


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

    @abstractmethod
    def do(self, step: Step) -> None:
        """Do one step."""

    def see(self, key: str, expected: Any) -> Any:
        """What the machine has for a key of ``expect``; it may look at what is wanted."""
        if key == "answers":
            return self.answers
        if key == "pending":
            return [label for label in self.asked if label not in self.answers]
        raise KeyError(key)

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
            assert fields.get("error", "NONE") == "NONE", (step, fields)
            return
        assert label not in self.answers, f"{label} is answered twice"
        self.answers[label] = fields


def check(suite: Suite, expect: Mapping[str, Any]) -> None:
    """Compare what is expected, and nothing else."""
    for key, named in expect.items():
        expected = suite.resolved(named)
        difference = _difference(expected, suite.see(key, expected), is_whole=key in _WHOLE)
        assert difference is None, f"{key}{difference}"


_WHOLE = {"fields"}
_WHOLE_MAPS = {"offsets", "errors", "assignments"}
_SETS = {"members"}


def _difference(expected: Any, actual: Any, *, is_whole: bool = False) -> str | None:
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if is_whole and expected.keys() != actual.keys():
            return f": expected {expected}, is {actual}"
        for key, value in expected.items():
            if key not in actual:
                return f".{key}: expected {value}, is missing in {actual}"
            inner = actual[key]
            if key in _SETS and isinstance(value, list):
                value, inner = sorted(value), sorted(inner)
            difference = _difference(value, inner, is_whole=is_whole or key in _WHOLE_MAPS)
            if difference is not None:
                return f".{key}{difference}"
        return None
    return None if expected == actual else f": expected {expected}, is {actual}"
