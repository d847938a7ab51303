"""Suite ``cleanable``: which log is cleaned next, and which part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.setting import LONG_MAX
from regent.storage.cleanable_logs import (
    NEVER_CLEANED,
    CleanableLog,
    CleanableRange,
    choose,
    cleanable_range,
)
from regent.storage.cleaning_states import CleaningStates
from tests.conformance.fields import Fields, UnknownInCaseError


@dataclass(frozen=True)
class Segment:
    """A segment with its sizes and times."""

    base_offset: int
    size: int
    largest_timestamp: int
    first_timestamp: int


class CleanableLogs:
    """The logs of a case."""

    def __init__(self, given: Fields) -> None:
        self.now_ms = given.take("now", 0)
        self.logs = {name: _log(values) for name, values in given.take("logs").items()}
        self.uncleanable = set(given.take("uncleanable", ()))
        self.states = CleaningStates()
        for name in given.take("busy", {}):
            self.states.begin(TopicPartition(name, 0))

    def range(self, name: str) -> CleanableRange:
        """Return the part of a log to clean."""
        return cleanable_range(self.logs[name], self.now_ms)

    def do(self, verb: str, step: Fields) -> Mapping[str, Any]:
        """Do a step."""
        if verb == "range":
            found = self.range(step.take("log"))
            return {
                "first_dirty": found.first_dirty,
                "first_uncleanable": found.first_uncleanable,
                "reset": found.is_reset,
                "bound": found.bound,
                "cleanable_bytes": found.cleanable_bytes,
                "total_bytes": found.total_bytes,
            }
        if verb != "choose":
            raise UnknownInCaseError(verb)
        free = [
            name
            for name in self.logs
            if self.states.of(TopicPartition(name, 0)) is None and name not in self.uncleanable
        ]
        chosen = choose((name, self.logs[name].config, self.range(name)) for name in free)
        if chosen is None:
            return {"log": None}
        assert self.states.begin(TopicPartition(chosen[0], 0))
        return {"log": chosen[0]}

    def see(self, key: str) -> object:
        """Nothing is seen but answers."""
        raise UnknownInCaseError(key)


@contextmanager
def play(given: Fields) -> Iterator[CleanableLogs]:
    """Return the logs of a case."""
    yield CleanableLogs(given)


def _log(values: Mapping[str, Any]) -> CleanableLog:
    with Fields(values, "log") as fields:
        rows = [
            (s["base"], s["size"], s["largest_time"], s["first_time"]) for s in values["segments"]
        ]
        fields.take("segments")
        return CleanableLog(
            [Segment(*row) for row in rows],
            LogConfig(
                cleanup_policy=",".join(fields.take("policy", ["compact"])),
                min_cleanable_dirty_ratio=fields.take("min_ratio", 0.5),
                min_compaction_lag_ms=fields.take("min_lag_ms", 0),
                max_compaction_lag_ms=fields.take("max_lag_ms", LONG_MAX),
            ),
            fields.take("start"),
            fields.take("end"),
            fields.take("stable"),
            fields.take("checkpoint", NEVER_CLEANED),
        )
