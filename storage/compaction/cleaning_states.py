"""Which logs are being cleaned, and of which cleaning is paused. Mirrors ``LogCleanerManager``."""

from __future__ import annotations

import threading
from typing import NamedTuple, TypeAlias

from regent.core.model import TopicPartition


class Busy(NamedTuple):
    """A log is being cleaned. ``is_aborted``: someone waits for the end."""

    is_aborted: bool = False


class Paused(NamedTuple):
    """Cleaning of a log is paused this many times."""

    times: int = 1


CleaningState: TypeAlias = Busy | Paused


class CleaningStates:
    """The state of each log that has one. Thread-safe; calls no other part under its lock."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, CleaningState] = {}
        self._changed = threading.Condition()

    def of(self, topic_partition: TopicPartition) -> CleaningState | None:
        """Return the state of a log."""
        return self._states.get(topic_partition)

    def begin(self, topic_partition: TopicPartition) -> bool:
        """Begin to clean a log; False: it has a state already."""
        with self._changed:
            return self._states.setdefault(topic_partition, begun := Busy()) is begun

    def is_aborted(self, topic_partition: TopicPartition) -> bool:
        """Whether the cleaning that is under way must stop."""
        return self._states.get(topic_partition) == Busy(is_aborted=True)

    def end(self, topic_partition: TopicPartition) -> bool:
        """End what ``begin`` began; False: it was aborted, and the log is paused now."""
        with self._changed:
            state = self._states.get(topic_partition)
            if not isinstance(state, Busy):
                raise RuntimeError(f"{topic_partition} is not being cleaned: {state}")
            if state.is_aborted:
                self._states[topic_partition] = Paused()
            else:
                del self._states[topic_partition]
            self._changed.notify_all()
            return not state.is_aborted

    def pause(self, topic_partition: TopicPartition) -> None:
        """Stop cleaning a log; see ``await_pause``. Pauses nest."""
        with self._changed:
            state = self._states.get(topic_partition)
            if state is None:
                self._states[topic_partition] = Paused()
            elif isinstance(state, Paused):
                self._states[topic_partition] = Paused(state.times + 1)
            elif state.is_aborted:
                raise RuntimeError(f"cleaning of {topic_partition} is being paused already")
            else:
                self._states[topic_partition] = Busy(is_aborted=True)

    def await_pause(self, topic_partition: TopicPartition) -> None:
        """Wait until the cleaning that ``pause`` aborted has ended.

        The caller must not hold the lock of the log, which the cleaner may wait for.
        """
        with self._changed:
            self._changed.wait_for(lambda: isinstance(self._states.get(topic_partition), Paused))

    def resume(self, topic_partition: TopicPartition) -> None:
        """Undo one ``pause``."""
        with self._changed:
            state = self._states.get(topic_partition)
            if not isinstance(state, Paused):
                raise RuntimeError(f"cleaning of {topic_partition} is not paused: {state}")
            if state.times > 1:
                self._states[topic_partition] = Paused(state.times - 1)
            else:
                del self._states[topic_partition]
