"""Executes moves: begins those for which their brokers have room, and watches them to their end.

Each step reads the moves in flight, and begins others. A move is submitted only if its partition
was at its original replicas just before. A process that was stopped in between reads again, because
its view may be outdated. ``jobs plan execute`` and ``rollback`` are a front end of this.

The other one is ``reassign``, which submits all moves once, whatever their partitions do
(``Flight.submit_all``). A refusal is final, and a move has ended when ZooKeeper shows none.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from regent.client.controller_ref import ControllerRef, batches, refusal
from regent.client.move_pause import slow_new_moves
from regent.client.moves import (
    Move,
    MoveState,
    Obstacle,
    Standing,
    as_moves,
    not_registered,
    read_obstacles,
    read_progress,
    roles,
    survey,
    under_way,
)
from regent.client.wording import listed
from regent.core.errors import Errors
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.zk.stores.admin_store import ZkAdminStore

_ANSWER_S: Final = 5.0
_SUBMIT_S: Final = 10.0  # then look for the controller again, because it may have moved
_FRESH_S: Final = 5.0  # an older view of a partition is read again before a submission
_RETRY_S: Final = 5.0  # until a move that was refused for a temporary reason is submitted again
_ROWS_PER_REQUEST: Final = 1_000  # so that no request keeps the controller busy for long
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0
_PAUSE_GROWTH: Final = 1.5

Ongoing: TypeAlias = Mapping[TopicPartition, Move]
"""The reassignments in progress, those executed here and those of others."""


def ongoing_reassignments(
    controller: ControllerRef, partitions: Sequence[TopicPartition] | None, *, deadline: float
) -> dict[TopicPartition, ReplicaAssignment]:
    """Return the reassignments of ``partitions``, None: all, sorted; raises ``ControllerError``."""
    questions = [None] if partitions is None else list(batches(partitions))
    found: dict[TopicPartition, ReplicaAssignment] = {}
    for question in questions:
        found |= controller.ask_until_answered(
            ListPartitionReassignmentsRequest.of(question),
            ListPartitionReassignmentsResponse,
            deadline=deadline,
        ).assignments
    return dict(sorted(found.items()))


def _alteration(
    moves: Iterable[Move], *, is_cancelled: bool = False
) -> AlterPartitionReassignmentsRequest:
    """Return the request that begins moves, or cancels them."""
    return AlterPartitionReassignmentsRequest.of(
        {move.partition: None if is_cancelled else move.target for move in moves}
    )


class ExecutionOptions(NamedTuple):
    """How moves are executed; see the options of ``plan execute``."""

    max_moves_per_broker: int = 5  # Cruise Control's concurrency too
    max_moves: int = 250
    stall_timeout: float = 3600.0
    additional: bool = False
    throttle: int | None = None


DEFAULTS: Final = ExecutionOptions()


@dataclass(slots=True)
class WaitingMove:
    """A move that has not begun, and why not: as far as it was looked at."""

    move: Move
    busy: BrokerId | None = None  # a broker without room for it
    dead: BrokerId | None = None  # a broker to add that was not registered
    refusal: str = ""  # of the controller
    retry_at: float = 0.0


def choose(
    waiting: Iterable[WaitingMove],
    in_progress: Iterable[Move],
    live: Collection[BrokerId],
    options: ExecutionOptions,
) -> list[Move]:
    """Return the moves that may begin now beside those in progress; the first has precedence.

    A broker takes part in a limited number of moves at a time, and all together make a limited
    number. A move that exceeds a limit alone begins when its brokers do nothing else. A broker that
    is not ``live`` cannot receive. A look at a move is short while what it waited for is the same.
    """
    per_broker = options.max_moves_per_broker
    used: Counter[BrokerId] = Counter()
    moving = 0
    for move in in_progress:
        used.update(roles(move.before, move.target))
        moving += move.replicas_changed
    full = {broker for broker, held in used.items() if held >= per_broker}
    now = time.monotonic()
    chosen: list[Move] = []
    for one in waiting:
        if one.busy in full or now < one.retry_at or not (one.dead is None or one.dead in live):
            continue
        move, count = one.move, one.move.replicas_changed
        if count and moving and moving + count > options.max_moves:
            break
        parts = roles(move.before, move.target)
        one.dead = next((b for b in move.added if b not in live), None)
        one.busy = next(
            (b for b, part in parts.items() if used[b] and used[b] + part > per_broker), None
        )
        if one.dead is None and one.busy is None:
            chosen.append(move)
            moving += count
            used.update(parts)
            full.update(broker for broker in parts if used[broker] >= per_broker)
            if len(chosen) == _ROWS_PER_REQUEST:
                break
    return chosen


class Flight:
    """Moves that wait, those in flight, and what became of the others.

    ``cancels``: moves in the other direction are turned; otherwise they are those of another
    tool. ``pause`` returns why no request may be sent to the controller now, or nothing. What it
    raises ends the execution.
    """

    def __init__(
        self,
        moves: Sequence[Move],
        options: ExecutionOptions = DEFAULTS,
        *,
        cancels: bool = False,
        pause: Callable[[], str] = lambda: "",
    ) -> None:
        self._moves = {move.partition: move for move in moves}
        self._pause = pause
        self._options = options
        self._cancels = cancels
        self._is_once = False  # all moves were submitted, and none will be again
        self.moved = self.begun = 0
        self.changed: dict[TopicPartition, Standing] = {}
        """Partitions that others have reassigned since."""
        self.refused: dict[TopicPartition, str] = {}
        """Partitions that cannot be moved or that others have turned back, with the reasons."""
        self.in_flight: dict[TopicPartition, Move] = {}
        self.obstacle = ""
        """Why no move may begin now."""
        self.is_paused = False
        """Whether somebody has paused this plan, or all moves."""
        self._seen: set[TopicPartition] = set()  # moving, or at the target
        self._waiting: dict[TopicPartition, WaitingMove] = {}
        self._obstacles: Mapping[TopicPartition, Obstacle] = {}
        self._silence = ""  # why the controller did not answer the last request
        self.work = 0
        """What is left, in bytes or in moves."""
        self._has_bytes = any(move.bytes for move in moves)
        self.states: Counter[MoveState] = Counter()
        """How many moves had each state at the first look."""

    @property
    def left(self) -> int:
        """The number of partitions that are neither at their targets nor given up."""
        return len(self._waiting) + len(self.in_flight)

    @property
    def open_moves(self) -> list[Move]:
        """The moves that are neither complete nor given up."""
        return [*(waiting.move for waiting in self._waiting.values()), *self.in_flight.values()]

    def summary(self) -> dict[str, Any]:
        """Return what is done and what is not."""
        return {
            "partitions": len(self._moves),
            "reached_before": self.states[MoveState.REACHED],
            "moved": self.moved,
            "in_flight": len(self.in_flight),
            "left": self.left,
            "bytes_left" if self._has_bytes else "moves_left": self.work,
            "changed_meanwhile": [
                {**partition._asdict(), "replicas": standing.replicas}
                for partition, standing in self.changed.items()
            ],
            "refused": [
                {**partition._asdict(), "reason": reason}
                for partition, reason in self.refused.items()
            ],
        }

    def moved_by_others(self, ongoing: Ongoing) -> list[TopicPartition]:
        """Return the partitions that are being moved, but not by this execution."""
        ours = {MoveState.MOVING, *([MoveState.MOVING_BACK] if self._cancels else [])}
        return sorted(
            partition
            for partition, move in ongoing.items()
            if partition not in self._moves
            or under_way(self._moves[partition], move.target) not in ours
        )

    def waits(self, *, only_stuck: bool = False) -> str:
        """Return what open moves wait for; ``only_stuck``: those that need an operator."""
        by_reason: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for partition in self.in_flight:
            obstacle = self._obstacles.get(partition)
            if obstacle is None and self._silence:
                by_reason[f"not begun: {self._silence}"].append(partition)
            elif not only_stuck or (obstacle and obstacle.is_stuck):
                by_reason[obstacle.reason if obstacle else "just begun"].append(partition)
        for partition, waiting in self._waiting.items():
            if waiting.refusal:
                by_reason[f"not begun: {waiting.refusal}"].append(partition)
            elif waiting.dead is not None:
                by_reason[not_registered([waiting.dead])].append(partition)
        return "; ".join(
            f"{reason} ({listed(sorted(of))})" for reason, of in sorted(by_reason.items())
        )

    # --- the execution ----------------------------------------------------------------------------

    def look(self, admin: ZkAdminStore) -> None:
        """Read how far all moves are that were not given up."""
        self._seen.clear()
        given_up = self.changed.keys() | self.refused.keys()
        found = survey(admin, [m for p, m in self._moves.items() if p not in given_up])
        for standing in found:
            if standing.state is not MoveState.REACHED:
                self._sort(standing)
        self.work = sum(map(self._work_of, self.open_moves))
        self.states = self.states or Counter(standing.state for standing in found)

    def submit_all(
        self, controller: ControllerRef, *, deadline: float, is_cancelled: bool = False
    ) -> None:
        """Begin all moves, or cancel them; then ``steps`` only watches. Raises ``ControllerError``.

        Until a controller answers, the request is sent again.
        """
        self._is_once = True
        for batch in batches(list(self._moves.values())):
            self.in_flight |= {move.partition: move for move in batch}
            request = _alteration(batch, is_cancelled=is_cancelled)
            kind = AlterPartitionReassignmentsResponse
            self._note_refusals(controller.ask_until_answered(request, kind, deadline=deadline))

    def steps(
        self,
        admin: ZkAdminStore,
        controller: ControllerRef | None = None,
        *,
        deadline: float = math.inf,
    ) -> Iterator[bool]:
        """Begin and watch moves until none is left, or until ``deadline`` (monotonic seconds).

        Yields after each step whether a move has begun or ended. Without a ``controller`` no move
        begins.
        """
        pause_s = _FIRST_PAUSE_S
        while self.left:
            before = self._counts
            if controller is None:
                self._watch(admin)
            else:
                self._step(admin, controller)
            is_new = self._counts != before
            yield is_new
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self.left:
                return
            pause_s = _FIRST_PAUSE_S if is_new else min(_MAX_PAUSE_S, pause_s * _PAUSE_GROWTH)
            time.sleep(min(pause_s, left_s))

    @property
    def _counts(self) -> tuple[int, ...]:
        return self.moved, self.begun, len(self.changed), len(self.refused)

    def _step(self, admin: ZkAdminStore, controller: ControllerRef) -> None:
        paused = self._why_paused(admin)
        self.is_paused = bool(paused)
        answer = controller.ask(
            ListPartitionReassignmentsRequest.of(),
            ListPartitionReassignmentsResponse,
            deadline=time.monotonic() + _ANSWER_S,
        )
        failure = controller.failure if answer is None else ""
        ongoing = {} if answer is None else as_moves(answer.assignments)
        live = admin.read_brokers().keys()
        observed = time.monotonic()
        back = self._observe(admin, ongoing, live)
        # Not cancelled: the controller would keep the replicas, and change their order.
        self._submit(back, admin, controller, observed)
        others = [] if self._options.additional else self.moved_by_others(ongoing)
        self.obstacle = failure or paused or (f"others move {listed(others)}" if others else "")
        if not self.obstacle and not self._why_paused(admin):
            observed = time.monotonic()
            self._submit(self._ready(admin, ongoing, live), admin, controller, observed)

    def _why_paused(self, admin: ZkAdminStore) -> str:
        return self._pause() or ("all moves are paused" if admin.read_moves_pause() else "")

    def _observe(
        self, admin: ZkAdminStore, ongoing: Ongoing, live: Collection[BrokerId]
    ) -> list[Move]:
        """Find out which moves in flight have ended; return those that move back.

        Ongoing moves need not be read again.
        """
        targets = {partition: move.target for partition, move in ongoing.items()}
        moves = self.in_flight.values()
        going_on = [move for move in moves if targets.get(move.partition) == move.target]
        unclear = [move for move in moves if targets.get(move.partition) != move.target]
        if unclear:
            admin.topics.sync()  # or a move that has ended may seem not to have begun
        standings = [Standing(move, MoveState.MOVING) for move in going_on]
        standings += survey(admin, unclear)
        self._obstacles = read_obstacles(admin, standings, live)
        for standing in standings:
            partition = standing.move.partition
            if standing.state is MoveState.REACHED and partition not in self._obstacles:
                self.moved += 1
                self._close(standing.move)
            else:
                self._sort(standing)
        return [s.move for s in standings if s.state is MoveState.MOVING_BACK and self._cancels]

    def _watch(self, admin: ZkAdminStore) -> None:
        """Find out which of the moves that were all submitted once have ended."""
        for standing in read_progress(admin, list(self.in_flight.values())):
            if standing.is_ongoing:
                continue
            self._close(standing.move)
            if standing.state is MoveState.REACHED:
                self.moved += 1
            else:
                self.changed[standing.move.partition] = standing

    def _ready(
        self, admin: ZkAdminStore, ongoing: Ongoing, live: Collection[BrokerId]
    ) -> list[Move]:
        """Return the moves for which there is room beside those in flight and ongoing ones."""
        in_progress = {**ongoing, **self.in_flight}.values()
        standings = survey(admin, choose(self._waiting.values(), in_progress, live, self._options))
        for standing in standings:
            self._sort(standing)  # another execution of the plan, or others, may have moved it
        return [s.move for s in standings if s.state is MoveState.TO_MOVE]

    def _work_of(self, move: Move) -> int:
        """Return the bytes that a move copies; if sizes are not known, its replicas."""
        return len(move.added) * (move.bytes if self._has_bytes else 1)

    def _sort(self, standing: Standing) -> None:
        """Put a move where its state belongs; one whose request was lost waits again.

        A move that was seen, and is at its beginning again, was cancelled by others.
        """
        move, state = standing.move, standing.state
        if state is MoveState.MOVING_BACK and not self._cancels:
            state = MoveState.CHANGED
        if state in (MoveState.MOVING, MoveState.REACHED):
            self._seen.add(move.partition)
        elif state is MoveState.MOVING_BACK:
            self._seen.discard(move.partition)  # by an ended execution of the plan
        match state:
            case MoveState.TO_MOVE if move.partition in self._seen:
                self._close(move)
                self.refused[move.partition] = "another command has turned it back"
            case MoveState.TO_MOVE:
                self.in_flight.pop(move.partition, None)
                self._waiting.setdefault(move.partition, WaitingMove(move))
            case MoveState.MOVING | MoveState.MOVING_BACK | MoveState.REACHED:
                self._waiting.pop(move.partition, None)
                self.in_flight[move.partition] = move
            case MoveState.CHANGED:
                self._close(move)
                self.changed[move.partition] = standing
            case MoveState.GONE:
                self._close(move)
                self.refused[move.partition] = str(standing.error or "it does not exist")

    def _close(self, move: Move) -> None:
        if self._waiting.pop(move.partition, None) or self.in_flight.pop(move.partition, None):
            self.work -= self._work_of(move)

    def _submit(
        self,
        moves: Sequence[Move],
        admin: ZkAdminStore,
        controller: ControllerRef,
        observed: float,
    ) -> None:
        """Begin moves, or turn the opposite ones, which were observed at that time.

        A repeated request has no further effect. Without an answer the moves are in flight: the
        next observation shows whether they have begun.
        """
        for batch in batches(moves, _ROWS_PER_REQUEST):
            if self._pause() or time.monotonic() - observed > _FRESH_S:
                return
            for move in batch:
                self._waiting.pop(move.partition, None)
                self.in_flight[move.partition] = move
            answer = controller.ask(
                _alteration(batch),
                AlterPartitionReassignmentsResponse,
                deadline=time.monotonic() + _SUBMIT_S,
                limit_s=_SUBMIT_S,
            )
            self._silence = controller.failure if answer is None else ""
            if answer is not None:
                self._note_refusals(answer)
                self.begun += sum(move.partition in self.in_flight for move in batch)
            slow_new_moves(admin)  # a pause that was written meanwhile has not listed them

    def _note_refusals(self, answer: AlterPartitionReassignmentsResponse) -> None:
        """Take refused moves out; after a temporary reason a move is submitted again later.

        Such a reason is that a broker has just died, or no replica can replace the leader now.
        """
        for partition, result in answer.results.items():
            if result.error_code is Errors.NONE or partition not in self.in_flight:
                continue
            move, why = self.in_flight[partition], refusal(partition, result)
            if self._is_once or result.error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION:
                self._close(move)
                self.refused[partition] = why
            else:
                del self.in_flight[partition]
                retry_at = time.monotonic() + _RETRY_S
                self._waiting[partition] = WaitingMove(move, refusal=why, retry_at=retry_at)
