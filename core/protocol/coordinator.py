"""Requests to the coordinators of a broker, whose state is in partitions that the broker leads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from regent.core.errors import Errors

A = TypeVar("A")


class CoordinatorRequest(ABC, Generic[A]):
    """A request to a coordinator; ``A`` is the type of its answer."""

    __slots__ = ()

    @abstractmethod
    def refused(self, error: Errors) -> A:
        """Return the answer that refuses the whole request."""


class CoordinatorService(Protocol):
    """Takes requests to a coordinator of this broker, on any thread and without delay."""

    def ask(self, request: CoordinatorRequest[A], respond: Callable[[A], None]) -> None:
        """Call ``respond`` once, on any thread: some requests wait for others, or for a log."""
        ...
