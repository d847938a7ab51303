"""Defects under which a cluster does come to rest, but too late or with too many epochs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from unittest.mock import patch

from regent.core.controller import events
from regent.core.controller.controller import Controller
from regent.core.controller.quarantine import Quarantine
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.model import TopicPartition

LATE_MS = 5_000


def brokers_noticed_late() -> Any:
    """A controller waits before it reads which brokers registered or left."""
    dispatch = Controller._dispatch
    waiting: set[Controller] = set()

    def later(self: Controller, event: events.ControllerEvent, now_ms: int) -> None:
        is_news = isinstance(event, events.BrokerChange) and self.is_active
        if is_news and self not in waiting:
            waiting.add(self)
            self._services.schedule(LATE_MS, event)
            return
        if is_news:
            waiting.discard(self)
        dispatch(self, event, now_ms)

    return patch.object(Controller, "_dispatch", later)


def a_new_term_for_every_broker() -> Any:
    """A controller starts a new term for each change of a broker."""
    dispatch = Controller._dispatch

    def again(self: Controller, event: events.ControllerEvent, now_ms: int) -> None:
        is_of_brokers = isinstance(event, events.BrokerChange | events.BrokerModifications)
        dispatch(self, events.EventsLost() if is_of_brokers else event, now_ms)

    return patch.object(Controller, "_dispatch", again)


def moves_begin_again_and_again() -> Any:
    """Each change of an ISR gives a new leader epoch to all partitions being reassigned."""
    on_isr_change = Reassignments.on_isr_change

    def all_of_them(self: Reassignments, partitions: Collection[TopicPartition]) -> None:
        on_isr_change(self, partitions)
        self._phases.advance(sorted(self._context.partitions_being_reassigned))

    return patch.object(Reassignments, "on_isr_change", all_of_them)


def nothing_is_quarantined() -> Any:
    """An event that ended two controllers ends the third one too."""

    def everything(self: Quarantine) -> None:
        self._context.quarantined = {}

    return patch.object(Quarantine, "_read", everything)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    brokers_noticed_late: 15,
    moves_begin_again_and_again: 19,
    nothing_is_quarantined: 20,
}
