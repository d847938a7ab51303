"""Defects in how deleted topics come back: they test the simulation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from regent.core.controller.topics import deleted_topics
from regent.core.controller.topics.deleted_topics import DeletedTopics
from regent.core.model import TopicPartition
from regent.core.ports import DeletedPartition
from regent.core.protocol.controller import HeldLogs
from regent.storage import directory_logs
from regent.storage.directory_logs import DirectoryLogs
from regent.storage.recovery.stray_logs import StrayLogCheckpoint
from tests.support.memory_logs import MemoryDeletedLogs, MemoryLog


def every_replica_counts_as_in_sync() -> Any:
    """A topic is remembered with all its replicas, also those that lack records.

    Brokers do not notice either that a log lacks records: this alone is caught very rarely.
    """

    def with_all(replicas: tuple[int, ...], isr: tuple[int, ...], epoch: int) -> DeletedPartition:
        del isr
        return DeletedPartition(replicas, replicas, epoch)

    stack = ExitStack()
    stack.enter_context(patch.object(deleted_topics, "DeletedPartition", with_all))
    stack.enter_context(logs_that_lack_records_held())
    return stack


def deleted_logs_not_held() -> Any:
    """A broker says that it holds a log, and deletes it."""

    def forget(self: MemoryDeletedLogs, *key: Any) -> bool:
        return self._logs.pop(key, None) is not None

    return patch.object(MemoryDeletedLogs, "hold", forget)


def held_logs_deleted_with_time() -> Any:
    """A broker deletes the logs that it holds when their delay is over."""

    def purge(self: MemoryDeletedLogs) -> None:
        self._logs.clear()

    return patch.object(MemoryDeletedLogs, "purge", purge)


def answers_of_former_broker_epochs_hold() -> Any:
    """A broker that has started again is thought to hold what it held before."""

    def valid(self: DeletedTopics, held: tuple[HeldLogs, ...]) -> list[HeldLogs]:
        del self
        return list(held)

    return patch.object(DeletedTopics, "_valid", valid)


def logs_that_lack_records_held() -> Any:
    """A broker offers a log that was created empty in the place of another one."""
    add = MemoryDeletedLogs.add

    def as_whole(self: MemoryDeletedLogs, log: MemoryLog, *, is_whole: bool) -> None:
        add(self, log, is_whole=is_whole or log.lacks_records)

    def is_whole(self: DirectoryLogs, name: TopicPartition) -> bool:
        return name not in self.suspects.names

    stack = ExitStack()
    stack.enter_context(patch.object(MemoryDeletedLogs, "add", as_whole))
    stack.enter_context(patch.object(DirectoryLogs, "_is_whole", is_whole))
    return stack


def cut_logs_used_again() -> Any:
    """A log that recovery has cut, because it was damaged, leads when its topic comes back."""

    def without_end(*offsets: int) -> StrayLogCheckpoint:
        return StrayLogCheckpoint(*offsets)._replace(log_end_offset=0)

    return patch.object(directory_logs, "StrayLogCheckpoint", without_end)


def topics_back_in_their_last_leader_epochs() -> Any:
    """A partition comes back in the leader epoch in which it was deleted, until it has a leader."""
    restored_states = deleted_topics.restored_states

    def in_last_epochs(*topic: Any) -> Any:
        states = restored_states(*topic)
        if isinstance(states, str):
            return states
        return {
            name: state._replace(
                leader_and_isr=now._replace(leader_epoch=now.leader_epoch - 1),
            )
            for name, state in states.items()
            for now in [state.leader_and_isr]
        }

    return patch.object(deleted_topics, "restored_states", in_last_epochs)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    answers_of_former_broker_epochs_hold: 38,
    every_replica_counts_as_in_sync: 36,
    deleted_logs_not_held: 10,
    logs_that_lack_records_held: 8000036,
    held_logs_deleted_with_time: 57,
    cut_logs_used_again: 131062434,
    topics_back_in_their_last_leader_epochs: 20004088,
}
