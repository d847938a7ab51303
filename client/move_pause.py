"""Pauses all moves of partitions, and resumes them: from any command, for all others.

Moves in flight are throttled to a trickle (KIP-73) instead of cancelled, so what was copied stays.
Executions of plans begin no move meanwhile. The pause is a znode, so it outlives every command; it
has the rates that were there before, which come back at the end.
"""

from __future__ import annotations

import time
from typing import Final

from regent.client.flight import as_moves
from regent.client.move_throttle import add_throttle, remove_throttle
from regent.client.moves import ReassignmentError
from regent.client.partitions import read_partitions
from regent.config.command_line import program
from regent.core.quantities import span_text
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.stores.admin_store import ZkAdminStore

PAUSED_RATE: Final = 1
"""Bytes a second; brokers still fetch once in a window of eleven seconds, at most 10 MB."""


def pause_moves(admin: ZkAdminStore) -> int:
    """Throttle the moves in flight, and keep others from beginning; return how many are in flight.

    Done again, it also throttles the moves that have begun since. Raises ``BadDataError``.
    """
    _remove(admin)
    found = read_partitions(admin, admin.topics.read_topic_names()).partitions
    moving = {p.topic_partition: p.assignment for p in found if p.assignment.is_being_reassigned}
    now_ms = time.time_ns() // 1_000_000
    admin.write_moves_pause(MovesPause(now_ms))  # from now on no other one begins
    add_throttle(
        admin.configs,
        as_moves(moving).values(),
        PAUSED_RATE,
        lambda note: admin.write_moves_pause(MovesPause(now_ms, note.decode())),
    )
    return len(moving)


def resume_moves(admin: ZkAdminStore) -> bool:
    """Give the moves in flight their former rates; return whether they were paused.

    Raises ``BadDataError``.
    """
    was_paused = _remove(admin)
    admin.delete_moves_pause()
    return was_paused


def _remove(admin: ZkAdminStore) -> bool:
    """Take the throttle of a pause away."""
    pause = admin.read_moves_pause()
    if pause is not None and pause.throttle:
        remove_throttle(admin.configs, pause.throttle.encode())
    return pause is not None


def paused_for(admin: ZkAdminStore) -> str:
    """Return since when the moves are paused, and what ends it; empty: they are not paused."""
    pause = admin.read_moves_pause()
    if pause is None:
        return ""
    seconds = max(time.time() - pause.at_ms / 1000, 1.0)
    since = f" for {span_text(seconds)}" if pause.at_ms else ""
    return f"moves are paused{since}: `{program()} reassign --resume` ends that"


def refuse_if_paused(admin: ZkAdminStore) -> None:
    """Raise ``ReassignmentError`` while moves are paused, because a throttle would change that."""
    if why := paused_for(admin):
        raise ReassignmentError(why)
