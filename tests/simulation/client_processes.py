"""Processes of clients that stall, die and repeat requests: members of groups, or producers."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from tests.simulation.cluster import Cluster
from tests.simulation.virtual_time import AWAKE


class ClientProcess(Protocol):
    """A process of a client; it handles nothing while it is paused."""

    number: int
    is_dead: bool
    is_paused: bool

    def repeat(self) -> None:
        """Send its last request again."""
        ...


_P = TypeVar("_P", bound=ClientProcess)


class ClientProcesses(Generic[_P]):
    """The processes of one kind in a history, dead ones too; ``note`` writes it."""

    def __init__(
        self, kind: str, cluster: Cluster, dice: random.Random, note: Callable[..., None]
    ) -> None:
        self.all: list[_P] = []
        self._kind = kind
        self._cluster = cluster
        self._random = dice
        self._note = note

    @property
    def living(self) -> list[_P]:
        """The processes that are not dead."""
        return [process for process in self.all if not process.is_dead]

    def one(self) -> _P | None:
        """Return one that lives and is not paused."""
        running = [process for process in self.living if not process.is_paused]
        return self._random.choice(running) if running else None

    def stall(self) -> None:
        """Pause one for a while."""
        process = self.one()
        if process is not None:
            self._note("%s %d stalls", self._kind, process.number)
            process.is_paused = True
            after_ms = self._random.randrange(300, 5_000)
            self._cluster.time.schedule(AWAKE, after_ms, partial(_go_on, process))

    def kill(self, process: _P | None = None) -> None:
        """Let one die, without a word to the cluster."""
        process = process or self.one()
        if process is not None:
            self._note("%s %d dies", self._kind, process.number)
            process.is_dead = True

    def repeat(self) -> None:
        """Let one repeat its last request."""
        process = self.one()
        if process is not None:
            self._note("%s %d repeats its request", self._kind, process.number)
            process.repeat()

    def wake_all(self) -> None:
        """End all pauses."""
        for process in self.all:
            process.is_paused = False


def _go_on(process: ClientProcess) -> None:
    process.is_paused = False
