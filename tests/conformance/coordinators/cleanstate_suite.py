"""The suite ``cleanstate``: the states of logs for the cleaner, and its checkpoint.

The logs are real ones on disk.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regent.core.model import TopicPartition
from regent.storage.checkpoints import CLEANED_OFFSETS, read_offsets
from regent.storage.compaction.log_cleaner_manager import Busy, Paused
from tests.conformance.coordinators.suite import ReadMapping, Step, Suite
from tests.conformance.fields import UnknownInCaseError, WholeMap
from tests.support.disk_logs import Machine, create, fill, log_of
from tests.support.record_batches import batch

_RECORDS = 100
_LAST_OFFSET = 1_000_000_000


class CleanStateSuite(Suite):
    """Logs, of which the checkpoint has the offsets of the case."""

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        directory = self.undo.enter_context(TemporaryDirectory())
        self.machine = Machine(Path(directory) / "one")
        self.undo.callback(self.machine.end)
        self.logs = self.machine.start()
        self.states = self.logs.cleaner.states
        self.names: set[str] = set()
        for name, offset in given.get("checkpoint", {}).items():
            self.note(name, offset)

    def partition(self, name: str) -> TopicPartition:
        """Return the partition of a log, which is created when it is first named."""
        topic_partition = TopicPartition(name, 0)
        if name not in self.names:
            self.names.add(name)
            log = create(self.logs, topic_partition)
            fill(log, _RECORDS)
            log.append_as_follower(batch(b"r", base_offset=_LAST_OFFSET))
        return topic_partition

    def note(self, name: str, offset: int) -> None:
        """Write up to where a log was cleaned."""
        log = log_of(self.logs, self.partition(name))
        assert log.note_cleaned(offset, log.truncations)
        self.logs.checkpoint_cleaned_offsets()

    def do(self, step: Step) -> None:
        topic_partition = self.partition(step.get("log", "a"))
        try:
            self.answer(step, result=self.result(step, topic_partition))
        except RuntimeError:
            self.answer(step, result="illegal")

    def result(self, step: Step, topic_partition: TopicPartition) -> str:
        """Do a step; return its outcome."""
        states = self.states
        match step["do"]:
            case "begin":
                return "ok" if states.begin(topic_partition) else "refused"
            case "abort_and_pause":
                states.pause(topic_partition)
            case "resume":
                states.resume(topic_partition)
            case "done_cleaning":
                end = step["end"]
                if states.end(topic_partition):
                    self.note(topic_partition.topic, end)
            case "done_deleting":
                states.end(topic_partition)
            case "is_aborted":
                return "yes" if states.is_aborted(topic_partition) else "no"
            case "truncate_checkpoint":
                log_of(self.logs, topic_partition).truncate_to(step["offset"])
            case "remove_log":
                self.logs.delete(topic_partition)
                self.logs.checkpoint_cleaned_offsets()
            case verb:
                raise UnknownInCaseError(verb)
        return "ok"

    def see(self, key: str, expected: Any) -> Any:
        match key:
            case "states":
                return {name: self._state(name) for name in expected}
            case "checkpoint":
                offsets = read_offsets(self.machine.directories[0] / CLEANED_OFFSETS)
                return WholeMap({name.topic: offset for name, offset in offsets.items()})
            case _:
                return super().see(key, expected)

    def _state(self, name: str) -> str | None:
        match self.states.of(TopicPartition(name, 0)):
            case Busy(is_aborted):
                return "aborted" if is_aborted else "in_progress"
            case Paused(times):
                return f"paused {times}"
            case None:
                return None
