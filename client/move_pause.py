"""Pauses all moves of partitions, and resumes them: from any command, for all others.

Moves in flight are throttled to a trickle (KIP-73) instead of cancelled, so what was copied stays.
Executions of plans begin no move meanwhile. The pause is a znode, so it outlives every command; it
has the rates that were there before, which come back at the end.
"""

from __future__ import annotations

import time
from typing import Final

from regent.client.flight import as_moves
from regent.client.move_throttle import remove_throttle, set_throttle, throttle_note
from regent.client.moves import ReassignmentError
from regent.client.partitions import read_partitions
from regent.config.command_line import program
from regent.core.quantities import span_text
from regent.zk.client.requests import RequestTooLargeError
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.stores.admin_store import ZkAdminStore

PAUSED_RATE: Final = 1
"""Bytes a second; brokers still fetch once in a window of eleven seconds, at most 10 MB."""


def pause_moves(admin: ZkAdminStore) -> int:
    """Throttle the moves in flight, and keep others from beginning; return how many are in flight.

    Done again, it also throttles the moves that have begun since. Two may do it at once: neither
    takes the rate of the other for one from before. Raises ``BadDataError``, ``ConflictError``, and
    ``ReassignmentError`` if another command resumes the moves meanwhile or there are too many.
    """
    now_ms = time.time_ns() // 1_000_000
    was_paused = admin.read_moves_pause() is not None
    admin.change_moves_pause(lambda pause: pause or MovesPause(now_ms))  # no other one begins now
    found = read_partitions(admin, admin.topics.read_topic_names()).partitions
    moving = {p.topic_partition: p.assignment for p in found if p.assignment.is_being_reassigned}
    moves = as_moves(moving).values()

    def with_note(pause: MovesPause | None) -> MovesPause:
        pause = pause or MovesPause(now_ms)
        earlier = pause.throttle.encode() or None
        note = throttle_note(admin.configs, moves, PAUSED_RATE, earlier)
        return pause._replace(throttle=note.decode())

    try:
        pause = admin.change_moves_pause(with_note)
    except RequestTooLargeError as error:
        if not was_paused:
            admin.change_moves_pause(lambda _: None)
        raise ReassignmentError(
            f"{len(moving):,} moves are too many to pause: what their throttle changes does not fit"
            f" into a znode ({error}); cancel some with `{program()} reassign --cancel`, or set"
            " rates with --throttle"
        ) from error
    assert pause is not None
    set_throttle(admin.configs, pause.throttle.encode())
    if admin.read_moves_pause() is None:
        remove_throttle(admin.configs, pause.throttle.encode())
        raise ReassignmentError("another command resumed the moves meanwhile")
    return len(moving)


def resume_moves(admin: ZkAdminStore) -> bool:
    """Give the moves in flight their former rates; return whether they were paused.

    Raises ``BadDataError`` and ``ConflictError``.
    """
    was_paused = False

    def without(pause: MovesPause | None) -> None:
        nonlocal was_paused
        was_paused = was_paused or pause is not None
        if pause is not None and pause.throttle:
            remove_throttle(admin.configs, pause.throttle.encode())

    admin.change_moves_pause(without)
    return was_paused


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
