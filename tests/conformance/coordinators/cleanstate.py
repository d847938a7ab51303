"""Suite ``cleanstate``: the states of logs for the cleaner, and its checkpoint.

The logs are real ones on disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regent.core.model import TopicPartition
from regent.storage.checkpoints import CLEANED_OFFSETS, read_offsets
from regent.storage.cleaning_states import Busy, Paused
from tests.conformance.fields import Fields, UnknownInCaseError, WholeMap
from tests.support.disk_logs import Machine, create, fill, log_of

_RECORDS = 100


class CleaningStatesOfLogs:
    """Two logs, of which the checkpoint has the offsets of the case."""

    def __init__(self, given: Fields, machine: Machine) -> None:
        self.machine = machine
        self.logs = machine.start()
        self.states = self.logs.cleaner.states
        for name in ("a", "b"):
            fill(create(self.logs, TopicPartition(name, 0)), _RECORDS)
        for name, offset in given.take("checkpoint", {}).items():
            self.note(name, offset)

    def note(self, name: str, offset: int) -> None:
        """Write up to where a log was cleaned."""
        log = log_of(self.logs, TopicPartition(name, 0))
        assert log.note_cleaned(offset, log.truncations)
        self.logs.checkpoint_cleaned_offsets()

    def do(self, verb: str, step: Fields) -> Mapping[str, Any]:
        """Do a step."""
        name = step.take("log", "a")
        try:
            return {"result": self._result(verb, name, step)}
        except RuntimeError:
            return {"result": "illegal"}

    def _result(self, verb: str, name: str, step: Fields) -> str:
        topic_partition, states = TopicPartition(name, 0), self.states
        match verb:
            case "begin":
                return "ok" if states.begin(topic_partition) else "refused"
            case "abort_and_pause":
                states.pause(topic_partition)
            case "resume":
                states.resume(topic_partition)
            case "done_cleaning":
                end = step.take("end")
                if states.end(topic_partition):
                    self.note(name, end)
            case "done_deleting":
                states.end(topic_partition)
            case "is_aborted":
                return "yes" if states.is_aborted(topic_partition) else "no"
            case "truncate_checkpoint":
                log_of(self.logs, topic_partition).truncate_to(step.take("offset"))
            case "remove_log":
                self.logs.delete(topic_partition)
                self.logs.checkpoint_cleaned_offsets()
            case _:
                raise UnknownInCaseError(verb)
        return "ok"

    def see(self, key: str) -> object:
        """Return the states or the checkpoint."""
        if key == "states":
            return {name: self._state(name) for name in ("a", "b")}
        if key == "checkpoint":
            offsets = read_offsets(self.machine.directories[0] / CLEANED_OFFSETS)
            return WholeMap({name.topic: offset for name, offset in offsets.items()})
        raise UnknownInCaseError(key)

    def _state(self, name: str) -> str | None:
        match self.states.of(TopicPartition(name, 0)):
            case Busy(is_aborted):
                return "aborted" if is_aborted else "in_progress"
            case Paused(times):
                return f"paused {times}"
            case None:
                return None


@contextmanager
def play(given: Fields) -> Iterator[CleaningStatesOfLogs]:
    """Return the logs of a case."""
    with tempfile.TemporaryDirectory() as directory:
        machine = Machine(Path(directory) / "one")
        try:
            yield CleaningStatesOfLogs(given, machine)
        finally:
            machine.end()
