"""Waves: the changes that are made at the same time, with limits for each broker.

In a wave a broker takes part in a limited number of moves: it receives a replica, gives one up, or
leads the partition and so sends the data. All brokers together make a limited number of moves. A
partition is in one wave. A change that exceeds a limit alone is the only one of that broker, or of
the wave.

The changes with the busiest brokers come first and each goes into the first wave that has room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from regent.core.model import BrokerId
from regent.jobs.planning.model import Change


def roles(change: Change) -> dict[BrokerId, int]:
    """Return the number of moves of each broker in one change."""
    before, after = change.before, change.after
    parts = {broker: 1 for broker in before if broker not in after}
    added = [broker for broker in after if broker not in before]
    if added:
        parts.update(dict.fromkeys(added, 1))
        parts[change.sender] = len(added)
    return parts


def number_waves(changes: Sequence[Change], per_broker: int, total: int) -> list[int]:
    """Return the wave of each change, from 0 and without gaps."""
    parts = [roles(change) for change in changes]
    busy: defaultdict[BrokerId, int] = defaultdict(int)
    for of_change in parts:
        for broker, count in of_change.items():
            busy[broker] += count
    heaviness = [max(busy[broker] for broker in of_change) for of_change in parts]
    wave_of = [0] * len(changes)
    waves = _Waves(per_broker, total)
    for index in sorted(range(len(changes)), key=heaviness.__getitem__, reverse=True):
        wave_of[index] = waves.add(parts[index], changes[index].moves)
    return wave_of


class _Waves:
    """The moves of each wave, by broker and in total.

    ``_first_of`` is the first wave with room for a broker; ``_after_full`` maps a full wave to a
    later one that may have room.
    """

    def __init__(self, per_broker: int, total: int) -> None:
        self._per_broker = per_broker
        self._total = total
        self._moves: list[int] = []
        self._after_full: dict[int, int] = {}
        self._used: defaultdict[BrokerId, list[int]] = defaultdict(list)
        self._first_of: defaultdict[BrokerId, int] = defaultdict(int)

    def add(self, parts: Mapping[BrokerId, int], moves: int) -> int:
        """Add a change to the first wave that has room for it; return the wave."""
        wave = self._open_from(max(self._first_of[broker] for broker in parts))
        while not self._has_room(wave, parts, moves):
            wave = self._open_from(wave + 1)
        self._enter(self._moves, wave, moves, self._total, wave)
        if self._moves[wave] >= self._total:
            self._after_full[wave] = wave + 1
        for broker, count in parts.items():
            used, first = self._used[broker], self._first_of[broker]
            self._first_of[broker] = self._enter(used, wave, count, self._per_broker, first)
        return wave

    def _open_from(self, wave: int) -> int:
        """Return the first wave, from this one on, that is not full."""
        found = wave
        while found in self._after_full:
            found = self._after_full[found]
        while wave != found:
            following = self._after_full[wave]
            self._after_full[wave] = found
            wave = following
        return found

    def _has_room(self, wave: int, parts: Mapping[BrokerId, int], moves: int) -> bool:
        counts = self._moves
        if wave < len(counts) and counts[wave] > 0 and counts[wave] + moves > self._total:
            return False
        for broker, count in parts.items():
            counts = self._used[broker]
            if wave < len(counts) and counts[wave] > 0 and counts[wave] + count > self._per_broker:
                return False
        return True

    @staticmethod
    def _enter(counts: list[int], wave: int, count: int, limit: int, first: int) -> int:
        """Add to a wave's count; return the first wave whose count is below its limit."""
        if wave >= len(counts):
            counts.extend([0] * (wave + 1 - len(counts)))
        counts[wave] += count
        while first < len(counts) and counts[first] >= limit:
            first += 1
        return first
