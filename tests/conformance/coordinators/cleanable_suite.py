"""The suite ``cleanable``: which log is cleaned next, and which part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.setting import LONG_MAX
from regent.storage.checkpoints import NEVER_CLEANED
from regent.storage.compaction.cleanable_logs import (
    CleanableLog,
    CleanableRange,
    choose,
    cleanable_range,
)
from regent.storage.compaction.log_cleaner_manager import CleaningStates
from tests.conformance.coordinators.suite import ReadMapping, Step, Suite
from tests.conformance.fields import UnknownInCaseError


@dataclass(frozen=True)
class Segment:
    """A segment with its sizes and times."""

    base_offset: int
    size: int
    largest_timestamp: int
    first_timestamp: int


class CleanableSuite(Suite):
    """The logs of a case."""

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        self.now_ms = given.get("now", 0)
        self.logs: dict[str, CleanableLog] = {
            name: _log(values) for name, values in given["logs"].items()
        }
        self.uncleanable = set(given.get("uncleanable", ()))
        self.states = CleaningStates()
        for name in dict(given.get("busy", {})):
            self.states.begin(TopicPartition(name, 0))

    def range(self, name: str) -> CleanableRange:
        """Return the part of a log to clean."""
        return cleanable_range(self.logs[name], self.now_ms)

    def do(self, step: Step) -> None:
        match step["do"]:
            case "range":
                found = self.range(step["log"])
                self.answer(
                    step,
                    first_dirty=found.first_dirty,
                    first_uncleanable=found.first_uncleanable,
                    reset=found.is_reset,
                    bound=found.bound,
                    cleanable_bytes=found.cleanable_bytes,
                    total_bytes=found.total_bytes,
                )
            case "choose":
                self.answer(step, log=self.choose())
            case verb:
                raise UnknownInCaseError(verb)

    def choose(self) -> str | None:
        """Return the log to clean, which is busy from now on."""
        free = [
            name
            for name in self.logs
            if self.states.of(TopicPartition(name, 0)) is None and name not in self.uncleanable
        ]
        chosen = choose((name, self.logs[name].config, self.range(name)) for name in free)
        if chosen is None:
            return None
        assert self.states.begin(TopicPartition(chosen[0], 0))
        return chosen[0]


def _log(values: Mapping[str, Any]) -> CleanableLog:
    return CleanableLog(
        [
            Segment(row["base"], row["size"], row["largest_time"], row["first_time"])
            for row in values["segments"]
        ],
        LogConfig(
            cleanup_policy=",".join(values.get("policy", ["compact"])),
            min_cleanable_dirty_ratio=values.get("min_ratio", 0.5),
            min_compaction_lag_ms=values.get("min_lag_ms", 0),
            max_compaction_lag_ms=values.get("max_lag_ms", LONG_MAX),
        ),
        values["start"],
        values["end"],
        values["stable"],
        values.get("checkpoint", NEVER_CLEANED),
    )
