"""Pauses all moves of partitions, and resumes them: from any command, for all others.

Moves in flight are throttled to a trickle (KIP-73) instead of cancelled, so what was copied stays.
Executions of plans begin no move meanwhile. The pause is a znode, so it outlives every command; it
has the rates that were there before, which come back at the end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import partial
from typing import Final

from regent.client.move_throttle import remove_throttle, set_throttle, throttle_note
from regent.client.moves import Move, ReassignmentError, as_moves
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.core.ports import TopicAssignment
from regent.core.quantities import span_text
from regent.zk.client.requests import RequestTooLargeError
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.stores.admin_store import ZkAdminStore

PAUSED_RATE: Final = 1
"""Bytes a second; brokers still fetch once in a window of eleven seconds, at most 10 MB."""


def pause_moves(admin: ZkAdminStore) -> int:
    """Throttle the moves in flight, and keep others from beginning; return how many are in flight.

    Done again, it also throttles the moves that have begun since. Two may do it at once: neither
    takes the rate of the other for one from before. Raises ``ReassignmentError``: if another
    command resumes the moves meanwhile, there are too many, or it fails, maybe by half.
    """
    now_ms = time.time_ns() // 1_000_000
    was_paused = admin.read_moves_pause() is not None
    try:
        admin.change_moves_pause(lambda pause: pause or MovesPause(now_ms))  # no other begins now
        number = _slow(admin)
    except RequestTooLargeError as error:
        if not was_paused:
            resume_moves(admin)
        raise _too_many(error) from error
    except RegentError as error:
        raise ReassignmentError(f"{error}; {half_paused()}") from error
    if number is None:
        raise ReassignmentError("another command resumed the moves meanwhile")
    return number


def half_paused() -> str:
    """Return what to do after a pause that has not come to its end."""
    command = f"{program()} reassign"
    return (
        "the moves may be paused, but not all of them slowed:"
        f" `{command} --pause` again completes it, `{command} --resume` ends it"
    )


def slow_new_moves(admin: ZkAdminStore) -> None:
    """If moves are paused, slow those in flight too: for a command that has begun some.

    Who begins moves looks for a pause just before, but one may be written and have listed the moves
    while the request is on its way. Raises as ``pause_moves``.
    """
    admin.topics.sync()
    if admin.read_moves_pause() is not None:
        try:
            _slow(admin)
        except RequestTooLargeError as error:
            raise _too_many(error) from error


def _slow(admin: ZkAdminStore) -> int | None:
    """Throttle the moves in flight, until no new one is found; return their number.

    None: they are not paused, or not any more.
    """
    slowed: set[Move] = set()
    while (moves := set(_moves_in_flight(admin))) - slowed:
        pause = admin.change_moves_pause(partial(_with_note, admin, moves))
        if pause is None:
            return None
        note = pause.throttle.encode()
        try:
            set_throttle(admin.configs, note)
        finally:  # also after Ctrl-C
            is_paused = admin.read_moves_pause() is not None
            if not is_paused:
                remove_throttle(admin.configs, note)
        if not is_paused:
            return None
        slowed = moves
    return len(moves)


def _with_note(
    admin: ZkAdminStore, moves: Collection[Move], pause: MovesPause | None
) -> MovesPause | None:
    """Return the pause with a note of what its throttle will change."""
    if pause is None:
        return None
    earlier = pause.throttle.encode() or None
    note = throttle_note(admin.configs, moves, PAUSED_RATE, earlier)
    return pause._replace(throttle=note.decode())


def _moves_in_flight(admin: ZkAdminStore) -> Iterable[Move]:
    topics = admin.topics.read_topics(sorted(admin.topics.read_topic_names()))
    return as_moves(
        {
            TopicPartition(topic, number): assignment
            for topic, found in topics.items()
            if isinstance(found, TopicAssignment)
            for number, assignment in found.partitions.items()
            if assignment.is_being_reassigned
        }
    ).values()


def _too_many(error: RequestTooLargeError) -> ReassignmentError:
    return ReassignmentError(
        "there are too many moves to pause: what their throttle changes does not fit into a znode"
        f" ({error}); cancel some with `{program()} reassign --cancel`, or set rates with"
        " --throttle"
    )


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
