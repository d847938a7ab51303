"""Requests to the coordinators of a broker, whose state is in partitions that the broker leads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from regent.core.errors import Errors

A = TypeVar("A")


class CoordinatorRequest(ABC, Generic[A]):
    """A request to a coordinator; ``A`` is the type of its answer."""

    __slots__ = ()

    @abstractmethod
    def refused(self, error: Errors) -> A:
        """Return the answer that refuses the whole request."""


@dataclass(slots=True, eq=False)  # a frozen one takes three times as long to make
class Question(Generic[A]):
    """A request, and what takes its answer: it is called on any thread."""

    request: CoordinatorRequest[A]
    respond: Callable[[A], None]


class CoordinatorService(Protocol):
    """Takes requests to a coordinator of this broker, on any thread and without delay."""

    def ask(self, questions: Sequence[Question[Any]]) -> None:
        """Ask in this sequence; each is answered once: some wait for others, or for a log."""
        ...
