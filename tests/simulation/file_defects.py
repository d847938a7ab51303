"""Defects in ``storage``: they test the histories that have files.

Each is a function that breaks one protection while the returned context lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from regent.storage import directory_logs
from regent.storage.log import log_loader
from regent.storage.log.leader_epoch_file_cache import LeaderEpochFileCache
from regent.storage.log.log_contents import LogContents
from regent.storage.log.log_loader import LoadedLog
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_directory import LogDirectory
from regent.storage.recovery.suspect_logs import SuspectLogs


def start_beyond_the_end_accepted() -> Any:
    """A log begins at its checkpointed start offset, even behind all of its records."""
    load = log_loader.load_log

    def and_begin(path: Any, config: Any, checkpointed: Any, **options: Any) -> LoadedLog:
        loaded = load(path, config, checkpointed, **options)
        start = checkpointed.log_start_offset
        if start > loaded.contents.log_end_offset:
            loaded.contents.begin_at(start, options["now_ms"])
        return loaded

    return patch.object(directory_logs, "load_log", and_begin)


def recovery_point_raised_before_the_flush() -> Any:
    """The recovery point includes records that were not flushed."""
    return patch.object(UnifiedLog, "_flush_segment", lambda self, segment: None)


def torn_ends_unchecked() -> Any:
    """Recovery does not check the end of a log after a loss of power."""
    stack = ExitStack()
    stack.enter_context(patch.object(LogDirectory, "was_closed_cleanly", lambda self: True))
    stack.enter_context(patch.object(SuspectLogs, "lost_power", False))
    return stack


def new_logs_forgotten() -> Any:
    """A log that was lost in a power failure, with its entry in a list, is not missed."""
    examine = SuspectLogs.examine

    def and_know_all(self: SuspectLogs, found: Any) -> None:
        knew_all = self.knows_all
        examine(self, found)
        self.knows_all = knew_all

    return patch.object(SuspectLogs, "examine", and_know_all)


def segments_need_not_meet() -> Any:
    """A log is opened, and read, although a segment may be missing."""
    stack = ExitStack()
    for check in ("_check_no_segment_is_missing", "_check_first_segment"):
        stack.enter_context(patch.object(log_loader, check, lambda contents: None))
    stack.enter_context(patch.object(LogContents, "check_next_segment", lambda *where: None))
    return stack


def epochs_outlive_their_records() -> Any:
    """When the end of a log is truncated, the leader epochs that began there stay."""
    return patch.object(LeaderEpochFileCache, "truncate_from_end", lambda self, offset: None)


def topic_ids_gone_with_the_power() -> Any:
    """A log has records before its topic id is flushed."""
    return patch.object(UnifiedLog, "_flush_topic_id", lambda self: None)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    start_beyond_the_end_accepted: 385,
    recovery_point_raised_before_the_flush: 46,
    torn_ends_unchecked: 81,
    new_logs_forgotten: 385,
    segments_need_not_meet: 2565,
    epochs_outlive_their_records: 1359,
    topic_ids_gone_with_the_power: 385,
}
"""The first seed of the search: few histories have files."""
