"""Changes of the files of a broker that is down: some are deleted, some are changed.

The loss of any file but a segment costs time and no records. The loss of a segment takes its
replica out of service, so only segments go whose records another in-sync replica has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from regent.core.model import TopicPartition
from regent.storage.checkpoints import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    read_offsets,
    write_offsets,
)
from tests.simulation.file_log import ObservedFileLog
from tests.simulation.simulated_logs import IsElsewhere

_BEYOND = 20  # offsets at most


class FileChange(NamedTuple):
    """A change of files; ``endangered`` is the log that may lose records by it, if any."""

    description: str
    act: Callable[[], object]
    endangered: TopicPartition | None = None


def draw_change(
    logs: Sequence[ObservedFileLog], dice: random.Random, is_elsewhere: IsElsewhere
) -> FileChange | None:
    """Return a random change of files; None: the drawn one is not possible."""
    kind = dice.randrange(4)
    if kind == 0:
        found = [change for log in logs for change in _lost_segments(log, is_elsewhere)]
        return dice.choice(found) if found else None
    if not logs:
        return None
    log = dice.choice(logs)
    if kind == 1:
        return _lost_checkpoint(log, dice)
    return _start_beyond_the_end(log, dice) if kind == 2 else _torn_index(log, dice)


def _lost_segments(log: ObservedFileLog, is_elsewhere: IsElsewhere) -> list[FileChange]:
    """Return the segments that may be deleted: neither the first nor the last one."""
    return [
        FileChange(f"{path.name} of {log.topic_partition}", path.unlink, log.topic_partition)
        for path, batches in log.files()[1:-1]
        if batches and all(is_elsewhere(log, batch) for batch in batches)
    ]


def _lost_checkpoint(log: ObservedFileLog, dice: random.Random) -> FileChange:
    directory = log.path.parent
    paths = directory / RECOVERY_POINTS, directory / HIGH_WATERMARKS, log.path / LEADER_EPOCHS
    path = dice.choice(paths)
    description = f"{path.name} beside {log.topic_partition}"
    return FileChange(description, lambda: path.unlink(missing_ok=True))


def _start_beyond_the_end(log: ObservedFileLog, dice: random.Random) -> FileChange:
    path = log.path.parent / LOG_START_OFFSETS
    start = log.log_end_offset + dice.randint(1, _BEYOND)
    description = f"{path.name} has {start} for {log.topic_partition}"
    return FileChange(
        description, lambda: write_offsets(path, {**read_offsets(path), log.topic_partition: start})
    )


def _torn_index(log: ObservedFileLog, dice: random.Random) -> FileChange | None:
    paths = sorted((*log.path.glob("*.index"), *log.path.glob("*.timeindex")))
    if not paths:
        return None
    path = dice.choice(paths)
    size = dice.randint(0, path.stat().st_size)
    description = f"{path.name} of {log.topic_partition} has {size} bytes"
    return FileChange(description, lambda: path.write_bytes(path.read_bytes()[:size]))
