"""What one event produced: effects in sequence, and changes for the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec

from regent.core.controller.effects import Change, Effect, RecordChanges, SendResponse
from regent.core.controller.events import RequestId

MAX_NAMED_CHANGES = 20  # an event may move 100,000 leaders; the journal names the first few

P = ParamSpec("P")


class Outbox:
    """Collects effects while an event is handled."""

    def __init__(self) -> None:
        self.perform: Callable[[list[Effect]], None] | None = None
        """Performs effects while their event is still being handled; None: ``flush`` waits."""
        self._effects: list[Effect] = []
        self._answered: set[RequestId] = set()
        self._changes: list[Change] = []
        self._change_count = 0

    def add(self, effect: Effect) -> None:
        """Append one effect."""
        self._effects.append(effect)

    def extend(self, effects: Iterable[Effect]) -> None:
        """Append effects."""
        self._effects.extend(effects)

    def flush(self) -> None:
        """Perform the collected effects now, because long work follows."""
        if self.perform is None or not self._effects:
            return
        effects, self._effects = self._effects, []
        self._answered.update(e.request_id for e in effects if isinstance(e, SendResponse))
        self.perform(effects)

    def has_answered(self, request_id: RequestId) -> bool:
        """Whether the request has its answer already: there is never a second one."""
        if request_id in self._answered:
            return True
        return any(
            isinstance(e, SendResponse) and e.request_id == request_id for e in self._effects
        )

    def record(self, kind: Callable[P, Change], *args: P.args, **kwargs: P.kwargs) -> None:
        """Note a change; only the first few of an event are created."""
        self._change_count += 1
        if len(self._changes) < MAX_NAMED_CHANGES:
            self._changes.append(kind(*args, **kwargs))

    def note(self, template: str, *args: object) -> None:
        """Note a change that has only a sentence; only the first few are formatted."""
        self.record(template.__mod__, args)

    def drain(self, controller_epoch: int) -> list[Effect]:
        """Return everything collected, the changes last, and start empty."""
        effects = self._effects
        if self._change_count:
            changes = tuple(self._changes)
            effects.append(RecordChanges(controller_epoch, changes, self._change_count))
        self._effects, self._changes, self._change_count = [], [], 0
        self._answered.clear()
        return effects
