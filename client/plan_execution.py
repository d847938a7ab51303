"""Executes a reassignment plan on a running cluster, or rolls it back.

Moves are kept in flight: one begins as soon as its brokers have room, in the sequence of the plan.
It is complete when ZooKeeper shows the partition at its target, with its live replicas in sync.
There is no other record of the progress, so the same command resumes a stopped or killed one. It
skips partitions at their target, waits for those being reassigned to it, and names and skips those
that others have changed. At the end the preferred replicas of the plan's partitions are elected.

No move begins while others reassign partitions, as with Kafka's tool. At the start that is an error
(``--additional`` overrides it); later the command waits. Two executions of the same plan at a time
do no harm: the controller's list of reassignments, which both read, has the moves of both, and the
throttle of one stays until the last has ended.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from regent.client.cluster_connection import ClusterNotFoundError
from regent.client.controller_ref import ControllerError, ControllerRef, batches
from regent.client.flight import (
    DEFAULTS,
    ExecutionOptions,
    Flight,
    ongoing_reassignments,
)
from regent.client.live_brokers import read_live_brokers
from regent.client.log_sizes import read_log_dirs
from regent.client.move_pause import refuse_if_paused, slow_new_moves
from regent.client.move_throttle import add_throttle, remove_throttle
from regent.client.moves import Move, as_moves, ids
from regent.client.plan_directory import (
    PAUSED,
    ROLLING_BACK,
    THROTTLE,
    TURNED,
    ExecutablePlan,
    PlanFileError,
    PlanLock,
    read_plan,
)
from regent.client.progress_line import ProgressLine, Speed, in_words, seconds_left
from regent.client.wording import counted, listed
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.model import BrokerId, LeaderIsrAndControllerEpoch, TopicPartition
from regent.core.protocol.messages.partitions import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from regent.zk.stores.admin_store import ZkAdminStore

_PROGRESS: Final = "progress.json"
_CLIENT_ID: Final = "regent-plan"
_FIRST_ANSWER_S: Final = 30.0  # where the command ends without an answer
_RECONNECT_PAUSE_S: Final = 1.0
_RECENT_S: Final = 120.0  # of a note of the speed
_NOTE_S: Final = 10.0  # between two notes of the speed in the directory
_LOOKS: Final = 4  # at the sizes of new replicas, before an execution gives up
_ELECTIONS_AT_ONCE: Final = 1_000  # so that clients do not lose all their leaders at once

OpenCluster: TypeAlias = Callable[[str], AbstractContextManager[ZkAdminStore]]


class PlanIncompleteError(RegentError):
    """Some partitions are not at their targets; ``summary`` is that of the execution."""

    def __init__(self, message: str, summary: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.summary = summary


def execute_plan(
    plan_dir: Path,
    address: str,
    options: ExecutionOptions = DEFAULTS,
    *,
    open_cluster: OpenCluster,
    is_rollback: bool = False,
) -> dict[str, Any]:
    """Move every partition of the plan in ``plan_dir`` to its target; return the summary.

    ``is_rollback``: move them back. When nothing prevents the moves, the directory is marked, so
    that executions in the other direction end. Their moves in flight are turned back, also by the
    executions that follow a rollback, until one of them has ended.

    Raises:
        PlanFileError: it is not a plan
        ClusterNotFoundError: there is no cluster at ``address``
        PlanIncompleteError: partitions were changed meanwhile or refused, or nothing went on
        RegentError: other reassignments are in progress, or there is no controller
        KeyboardInterrupt: after a message with the command that resumes it
    """
    plan = read_plan(plan_dir)
    plan = plan.rollback if is_rollback else plan
    with ProgressLine() as line, PlanLock(plan_dir) as lock:
        execution = _Execution(plan, options, line, lock)
        try:
            execution.run(lambda: open_cluster(address))
        except KeyboardInterrupt:
            again, back = ("rollback", "execute") if is_rollback else ("execute", "rollback")
            line.say("interrupted; what has begun goes on.")
            line.say(f"To resume: {command_line(again, plan, address)}")
            line.say(f"To move everything back: {command_line(back, plan, address)}")
            raise
        finally:
            if plan.has(THROTTLE) and lock.is_alone():
                _clear_throttle(plan, address, open_cluster, line)
    return execution.summary()


def _clear_throttle(
    plan: ExecutablePlan, address: str, open_cluster: OpenCluster, line: ProgressLine
) -> None:
    """Remove the throttle of a plan, or say how to."""
    try:
        with open_cluster(address) as admin:
            clear_throttle(admin, plan)
    except RegentError as error:
        line.say(str(error))
    finally:
        if plan.has(THROTTLE):
            line.say(
                f"The throttle remains! Remove it: {command_line('unthrottle', plan, address)}"
            )


def clear_throttle(admin: ZkAdminStore, plan: ExecutablePlan) -> None:
    """Remove the throttle of a plan, if it has one.

    Raises ``BadDataError`` and ``PlanFileError``, and ``ReassignmentError`` while moves are paused.
    """
    note = plan.read(THROTTLE)
    if note is not None:
        refuse_if_paused(admin)
        remove_throttle(admin.configs, note)
        plan.remove(THROTTLE)


def command_line(name: str, plan: ExecutablePlan, address: str) -> str:
    """Return a command line for a plan."""
    directory = str(plan.directory.absolute())
    return f"{program()} {shlex.join(('jobs', 'plan', name, directory, '--zookeeper', address))}"


def plan_status(
    plan_dir: Path,
    address: str,
    *,
    open_cluster: OpenCluster,
    is_rollback: bool | None = None,
) -> dict[str, Any]:
    """Return the progress of a plan, or of its rollback if that has begun; begin nothing.

    ``is_rollback`` names the direction, whatever has begun. Raises ``PlanFileError`` and
    ``ClusterNotFoundError``.
    """
    plan = read_plan(plan_dir)
    if plan.has(ROLLING_BACK) if is_rollback is None else is_rollback:
        plan = plan.rollback
    flight = Flight(plan.moves, cancels=plan.cancels)
    with open_cluster(address) as admin:
        flight.look(admin)
    note = json.loads(plan.read(_PROGRESS) or b"{}")
    is_recent = time.time() - note.get("at", 0.0) < _RECENT_S
    return {
        "plan": str(plan.directory),
        **flight.summary(),
        "states": {state.value: number for state, number in flight.states.items()},
        "is_rollback": plan.is_rollback,
        "is_paused": plan.has(PAUSED),
        "is_throttled": plan.has(THROTTLE),
        "seconds_left": seconds_left(flight.work, note["per_second"]) if is_recent else None,
    }


class _Execution:
    """The execution of one plan, over several ZooKeeper sessions if needed."""

    def __init__(
        self,
        plan: ExecutablePlan,
        options: ExecutionOptions,
        line: ProgressLine,
        lock: PlanLock,
    ) -> None:
        self._plan = plan
        self._lock = lock
        self._options = options
        self._line = line
        self._started = self._last_progress = time.monotonic()
        self._cancels = plan.cancels
        self._flight = Flight(plan.moves, options, cancels=plan.cancels, pause=self._pause)
        self._is_begun = False
        self._looked_at = 0.0  # when these sizes were asked for
        self._sizes: dict[tuple[BrokerId, TopicPartition], int] = {}
        self._elected = 0
        self._not_elected = ""  # why not
        self._speed = Speed()
        self._next_note = self._started + _NOTE_S

    def run(self, open_cluster: Callable[[], AbstractContextManager[ZkAdminStore]]) -> None:
        """Execute the plan; while ZooKeeper does not answer, wait."""
        while True:
            try:
                with (
                    open_cluster() as admin,
                    ControllerRef(
                        admin.read_controller_endpoint, client_id=_CLIENT_ID
                    ) as controller,
                ):
                    if not self._is_begun:
                        self._begin(admin, controller)
                    self._advance(admin, controller)
                    break
            except ClusterNotFoundError as error:
                if not self._is_begun:
                    raise
                self._give_up_if_stalled(partial(str, error))
                self._line.show(str(error))
                time.sleep(_RECONNECT_PAUSE_S)
        problems = self._left_alone()
        if problems:
            raise PlanIncompleteError(problems, self.summary())

    def _begin(self, admin: ZkAdminStore, controller: ControllerRef) -> None:
        """Find the moves that are left, and check that no other tool reassigns partitions."""
        flight = self._flight
        flight.look(admin)
        if flight.left:
            if not self._options.additional:
                deadline = time.monotonic() + _FIRST_ANSWER_S
                ongoing = ongoing_reassignments(controller, None, deadline=deadline)
                others = flight.moved_by_others(as_moves(ongoing))
                if others:
                    raise RegentError(
                        f"others are moving {listed(others)}: wait until that is done"
                        f" (`{program()} reassign --list`), or move more at a time with"
                        " --additional"
                    )
            to_move = "move back" if self._plan.is_rollback else "move"
            self._line.say(f"{counted(flight.left, 'partition')} to {to_move}")
            refuse_if_paused(admin)
        if len(flight.changed) + len(flight.refused) < len(self._plan.moves):
            self._plan.turn()  # otherwise this may be another cluster
        if flight.left:
            self._throttle(admin)
        self._lock.share()
        self._last_progress = time.monotonic()
        self._is_begun = True

    def _throttle(self, admin: ZkAdminStore) -> None:
        """Set the throttle; that of another execution stays, and that of a killed one goes."""
        rate, moves = self._options.throttle, self._flight.open_moves
        if self._lock.is_alone():
            clear_throttle(admin, self._plan)
        else:
            self._lock.share()  # the other must not end as the last one, and remove this throttle
        if rate is not None:
            self._line.show("setting the throttle")
            keep_note = partial(self._plan.leave, THROTTLE)
            add_throttle(admin.configs, moves, rate, keep_note, self._plan.read(THROTTLE))
            slow_new_moves(admin)  # this may have set higher rates than a pause
            refuse_if_paused(admin)

    def _advance(self, admin: ZkAdminStore, controller: ControllerRef) -> None:
        flight = self._flight
        self._complete(admin, controller)
        while self._cancels:
            # A request of an execution that has ended may have been on its way.
            flight.look(admin)
            if not flight.left:
                break
            self._complete(admin, controller)
        self._plan.remove(TURNED)
        self._line.show("electing preferred leaders")
        ours = [m for m in self._plan.moves if m.partition not in flight.changed]
        try:
            for few in batches(ours, _ELECTIONS_AT_ONCE):
                self._elect_preferred(few, admin, controller)
        except ControllerError as error:
            self._not_elected = str(error)

    def _complete(self, admin: ZkAdminStore, controller: ControllerRef) -> None:
        """Wait until every partition of the plan is at its target, or given up."""
        flight = self._flight
        for is_new in flight.steps(admin, controller):
            if is_new or flight.is_paused or self._is_copying(admin):
                self._last_progress = time.monotonic()
            self._give_up_if_stalled(lambda: flight.obstacle or flight.waits())
            self._speed.note(time.monotonic(), flight.work)
            self._note_speed()
            self._line.show(self._progress())

    def _is_copying(self, admin: ZkAdminStore) -> bool:
        """Whether a replica that a move in flight adds has grown; asked a few times before the end.

        A move may take longer than ``stall_timeout``, with a throttle above all.
        """
        looked_at = max(self._last_progress, self._looked_at)
        if time.monotonic() < looked_at + self._options.stall_timeout / _LOOKS:
            return False
        moves = self._flight.in_flight.values()
        added = {(broker, move.partition) for move in moves for broker in move.added}
        live = read_live_brokers(admin)
        asked = {broker: live[broker] for broker, _ in added if broker in live}
        found = read_log_dirs(asked, {partition for _, partition in added})
        before, self._sizes = self._sizes, dict[tuple[BrokerId, TopicPartition], int]()
        for directory in chain.from_iterable(found.values()):
            for log in directory.logs:
                self._sizes[directory.broker_id, log.topic_partition] = log.size
        self._looked_at = time.monotonic()
        return any(self._sizes.get(one, 0) > before.get(one, math.inf) for one in added)

    def _pause(self) -> str:
        """Return whether the plan is paused, for ``Flight``; raises if it has been turned."""
        if self._plan.is_turned:
            direction = "being executed" if self._plan.is_rollback else "being rolled back"
            raise PlanIncompleteError(f"another command: the plan is {direction}", self.summary())
        return "paused" if self._plan.has(PAUSED) else ""

    def _give_up_if_stalled(self, why: Callable[[], str]) -> None:
        if time.monotonic() - self._last_progress > self._options.stall_timeout:
            raise PlanIncompleteError(
                f"no move has begun or ended for {self._options.stall_timeout:g} s: {why()};"
                " run the same command again to continue",
                self.summary(),
            )

    def _elect_preferred(
        self, moves: Sequence[Move], admin: ZkAdminStore, controller: ControllerRef
    ) -> None:
        """Elect the first replicas of targets that are in sync and do not lead.

        After a move, the former leader leads on if it is still a replica. The controller's own
        rebalance comes only every five minutes, and only for brokers with many such partitions.
        """
        states = admin.read_partition_states([move.partition for move in moves])
        wanted = []
        for move in moves:
            state, preferred = states.get(move.partition), move.target[0]
            if isinstance(state, LeaderIsrAndControllerEpoch):
                leadership = state.leader_and_isr
                if leadership.leader != preferred and preferred in leadership.isr:
                    wanted.append(move.partition)
        if wanted:
            answer = controller.ask_until_answered(
                ElectLeadersRequest.of(ElectionType.PREFERRED, wanted),
                ElectLeadersResponse,
                deadline=time.monotonic() + _FIRST_ANSWER_S,
            )
            self._elected += len(answer.leaders)

    # --- messages ---------------------------------------------------------------------------------

    def _note_speed(self) -> None:
        """Leave the speed in the directory, for ``plan status``."""
        if time.monotonic() >= self._next_note:
            self._next_note = time.monotonic() + _NOTE_S
            note = {"at": round(time.time()), "per_second": self._speed.per_second}
            with suppress(PlanFileError):  # the directory may be read-only
                self._plan.leave(_PROGRESS, json.dumps(note).encode())

    def _progress(self) -> str:
        flight = self._flight
        time_left = in_words(seconds_left(flight.work, self._speed.per_second))
        parts = [
            f"{flight.left} of {counted(len(self._plan.moves), 'partition')} left",
            f"{len(flight.in_flight)} in flight",
            time_left,
            flight.obstacle,
            flight.waits(only_stuck=True),
        ]
        return ", ".join(filter(None, parts))

    def _left_alone(self) -> str:
        changed = [
            f"{partition} (now on {ids(standing.replicas)})"
            for partition, standing in sorted(self._flight.changed.items())
        ]
        refused = [f"{p} ({why})" for p, why in sorted(self._flight.refused.items())]
        problems = []
        if changed:
            problems.append(f"changed meanwhile and left alone: {listed(changed)}")
        if refused:
            problems.append(f"not moved: {listed(refused)}")
        if self._not_elected:
            why = f"{self._not_elected}; the same command does that later"
            problems.append(f"preferred leaders were not elected: {why}")
        return "; ".join(problems)

    def summary(self) -> dict[str, Any]:
        """Return what is done, in which time, and what is not."""
        return {
            "job": f"plan {'rollback' if self._plan.is_rollback else 'execute'}",
            "plan": str(self._plan.directory),
            **self._flight.summary(),
            "leaders_elected": self._elected,
            "seconds": round(time.monotonic() - self._started, 3),
        }
