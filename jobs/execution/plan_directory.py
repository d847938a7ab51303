"""Reads a reassignment plan from a directory: its waves and its rollback.

``waves/0001.json`` and so on are Kafka's reassignment documents, to be executed in sequence.
``rollback.json`` is one with the assignment when the plan was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from regent.config.command_line import program
from regent.core.admin.topic_validation import topic_name_problem
from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.jobs.command import InputError
from regent.jobs.execution.plan_progress import PlannedMove
from regent.zk.codecs.json_fields import JsonObject, decode_object

WAVES: Final = "waves"
ROLLBACK: Final = "rollback.json"
_WAVE: Final = re.compile(r"(\d{1,9})\.json")


@dataclass(frozen=True, slots=True)
class ExecutablePlan:
    """A plan to execute: it moves each partition once."""

    directory: Path
    waves: tuple[tuple[PlannedMove, ...], ...]

    @property
    def moves(self) -> list[PlannedMove]:
        """Every move, wave by wave."""
        return [move for wave in self.waves for move in wave]


def read_plan(directory: Path) -> ExecutablePlan:
    """Read the plan in ``directory``. Raises ``InputError`` for anything else."""
    paths = _wave_paths(directory)
    before = _read_assignments(directory / ROLLBACK)
    for topic in {partition.topic: None for partition in before}:
        problem = topic_name_problem(topic)
        if problem is not None:
            raise InputError(f"{directory / ROLLBACK}: topic {topic!r:.80} {problem}")
    waves = []
    wave_of: dict[TopicPartition, Path] = {}
    for path in paths:
        moves = []
        for partition, target in _read_assignments(path).items():
            if partition in wave_of:
                raise InputError(f"{path}: {wave_of[partition].name} moves {partition} as well")
            if partition not in before:
                raise InputError(f"{path}: {directory / ROLLBACK} does not have {partition}")
            wave_of[partition] = path
            moves.append(PlannedMove(partition, before[partition], target))
        waves.append(tuple(moves))
    forgotten = next((partition for partition in before if partition not in wave_of), None)
    if forgotten is not None:
        raise InputError(
            f"{directory}: no wave moves {forgotten}, which {ROLLBACK} has: is a wave missing?"
        )
    return ExecutablePlan(directory, tuple(waves))


def _wave_paths(directory: Path) -> list[Path]:
    folder = directory / WAVES
    try:
        names = [(_WAVE.fullmatch(path.name), path) for path in folder.iterdir()]
    except OSError as error:
        raise InputError(
            f"{directory} is not a plan ({folder}: {error.strerror}): name the directory that"
            f" `{program()} jobs plan … --out` wrote"
        ) from None
    numbered = sorted((int(match[1]), path) for match, path in names if match)
    for expected, (number, path) in enumerate(numbered, 1):
        if number != expected:
            raise InputError(f"{path}: wave {expected} is missing; waves are numbered 1, 2, 3, …")
    return [path for _, path in numbered]


def _read_assignments(path: Path) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Read a reassignment document: the replicas of each partition, in the sequence of the file."""
    assignments: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    try:
        rows = decode_object(path.read_bytes(), str(path)).array("partitions")
        for number, row in enumerate(rows, 1):
            where = f"{path}: entry {number} of partitions"
            if type(row) is not dict:
                raise BadDataError(f"{where} must be an object")
            entry = JsonObject(row, where)
            partition = TopicPartition(entry.string("topic"), entry.integer("partition"))
            if partition in assignments:
                raise BadDataError(f"{entry.node}: {partition} is named twice")
            replicas = assignments[partition] = entry.broker_ids("replicas")
            if not replicas:
                raise BadDataError(f"{entry.node}: {partition} has no replicas")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except BadDataError as error:
        raise InputError(str(error)) from None
    return assignments
