"""``regent jobs plan execute``: submits the waves of a plan to the controller, one by one.

A wave is complete when ZooKeeper shows every partition at its target, with its live replicas in
sync. There is no other record of the progress, so the same command resumes a stopped or killed one.
It skips partitions at their target, waits for those being reassigned to it, and names and skips
those that others have changed.

No wave begins while other reassignments are in progress, as with Kafka's tool: a plan keeps its
limits only when it is alone. At the start that is an error (``--additional`` overrides it); between
two waves the command waits. Two executions of the same plan at a time do no harm.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from regent.admin.cluster_connection import cluster_options, zookeeper_address
from regent.admin.controller_ref import ControllerRef
from regent.admin.pauses import pauses
from regent.admin.wording import counted, listed
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.controller import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.jobs.command import InputError, cluster_admin, print_summary
from regent.jobs.execution.plan_directory import ROLLBACK, ExecutablePlan, read_plan
from regent.jobs.execution.plan_progress import MoveState
from regent.jobs.execution.plan_survey import Standing, survey
from regent.jobs.execution.plan_wave import Wave
from regent.jobs.progress_line import ProgressLine
from regent.zk.stores.admin_store import ZkAdminStore

WAVE_TIMEOUT_S: Final = 3600.0
_CLIENT_ID: Final = "regent-plan"
_FIRST_ANSWER_S: Final = 30.0
_ANSWER_S: Final = 5.0
_RECONNECT_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 1.0

OpenCluster: TypeAlias = Callable[[str], AbstractContextManager[ZkAdminStore]]


class PlanIncompleteError(RegentError):
    """Some partitions are not at their targets; ``summary`` is that of the execution."""

    def __init__(self, message: str, summary: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.summary = summary


def execute_plan(
    plan_dir: Path,
    address: str,
    *,
    wave_timeout_s: float = WAVE_TIMEOUT_S,
    additional: bool = False,
    open_cluster: OpenCluster = cluster_admin,
) -> dict[str, Any]:
    """Move every partition of the plan in ``plan_dir`` to its target; return the summary.

    Raises:
        InputError: it is not a plan, or there is no cluster at ``address``
        PlanIncompleteError: partitions were changed meanwhile or refused, or a wave took too long
        RegentError: other reassignments are in progress, or there is no controller
        KeyboardInterrupt: after a message with the command that resumes it
    """
    plan = read_plan(plan_dir)
    with ProgressLine() as line:
        execution = _Execution(plan, wave_timeout_s, line, additional=additional)
        try:
            execution.run(lambda: open_cluster(address))
        except KeyboardInterrupt:
            line.say(f"interrupted; what has begun goes on. To resume: {_resume(plan, address)}")
            line.say(f"To roll back: {_roll_back(plan, address)}")
            raise
    return execution.summary()


def inspect_plan(
    plan_dir: Path, address: str, *, open_cluster: OpenCluster = cluster_admin
) -> dict[str, Any]:
    """Return the progress of the plan in ``plan_dir``, and the remaining waves; begin nothing.

    Raises ``InputError``.
    """
    plan = read_plan(plan_dir)
    with open_cluster(address) as admin:
        standings = survey(admin, plan.moves)
    moving = sum(standing.state is MoveState.MOVING for standing in standings)
    return {**_summary(plan, _waves(plan, standings)), "moving": moving, "dry_run": True}


def _waves(plan: ExecutablePlan, standings: Sequence[Standing]) -> list[Wave]:
    """Return the waves of a plan with the states of their moves, in sequence."""
    rest = iter(standings)
    return [
        Wave(number, list(islice(rest, len(moves)))) for number, moves in enumerate(plan.waves, 1)
    ]


def _summary(plan: ExecutablePlan, waves: Sequence[Wave]) -> dict[str, Any]:
    """Return what is done and what is not; without ``waves`` nothing is known."""
    return {
        "job": "plan execute",
        "plan": str(plan.directory),
        "waves": len(plan.waves),
        "waves_left": [wave.number for wave in waves if wave.open],
        "partitions": len(plan.moves),
        "reached_before": sum(wave.reached_before for wave in waves),
        "moved": sum(wave.moved for wave in waves),
        "left": sum(len(wave.open) for wave in waves),
        "changed_meanwhile": [
            {"topic": topic, "partition": number, "replicas": replicas}
            for wave in waves
            for (topic, number), replicas in wave.changed.items()
        ],
        "refused": [
            {"topic": topic, "partition": number, "reason": reason}
            for wave in waves
            for (topic, number), reason in wave.refused.items()
        ],
    }


def _resume(plan: ExecutablePlan, address: str) -> str:
    directory = str(plan.directory.absolute())
    arguments = ("jobs", "plan", "execute", directory, "--zookeeper", address)
    return f"{program()} {shlex.join(arguments)}"


def _roll_back(plan: ExecutablePlan, address: str) -> str:
    file = str(plan.directory.absolute() / ROLLBACK)
    arguments = ("reassign", "--zookeeper", address, "--execute", "--additional")
    return f"{program()} {shlex.join((*arguments, '--reassignment-json-file', file))}"


# --- waves ----------------------------------------------------------------------------------------


class _Execution:
    """The execution of one plan, over several ZooKeeper sessions if needed."""

    def __init__(
        self, plan: ExecutablePlan, wave_timeout_s: float, line: ProgressLine, *, additional: bool
    ) -> None:
        self._plan = plan
        self._wave_timeout_s = wave_timeout_s
        self._line = line
        self._waits_for_others = not additional
        self._started = self._wave_started = time.monotonic()
        self._targets = {move.partition: move.target for move in plan.moves}
        self._waves: list[Wave] = []  # all waves, when their states are known

    def run(self, open_cluster: Callable[[], AbstractContextManager[ZkAdminStore]]) -> None:
        """Execute the plan; while ZooKeeper does not answer, wait."""
        while True:
            try:
                with open_cluster() as admin, _controller_of(admin) as controller:
                    self._advance(admin, controller)
                    break
            except InputError as error:
                if not self._waves:
                    raise
                if time.monotonic() >= self._deadline:
                    raise PlanIncompleteError(str(error), self.summary()) from None
                self._line.show(str(error))
                time.sleep(_RECONNECT_PAUSE_S)
        problems = self._left_alone()
        if problems:
            raise PlanIncompleteError(problems, self.summary())

    def _advance(self, admin: ZkAdminStore, controller: ControllerRef) -> None:
        if not self._waves:
            self._begin(admin, controller)
        for wave in self._waves:
            if not wave.open:
                continue
            self._finish(wave, admin, controller)
            self._line.say(
                f"{self._name(wave)} is done: {counted(wave.moved, 'partition')}"
                f" in {self._wave_s():.0f} s"
            )
            self._wave_started = time.monotonic()

    def _begin(self, admin: ZkAdminStore, controller: ControllerRef) -> None:
        """Find the waves that are left, and check that no other tool reassigns partitions."""
        self._waves = _waves(self._plan, survey(admin, self._plan.moves))
        left = [wave for wave in self._waves if wave.open]
        if left:
            if self._waits_for_others:
                self._refuse_if_others_move(controller)
            count = sum(len(wave.open) for wave in left)
            to_move = counted(count, "partition")
            self._line.say(f"{to_move} to move, {self._name(left[0])} is the first")
        self._wave_started = time.monotonic()

    def _finish(self, wave: Wave, admin: ZkAdminStore, controller: ControllerRef) -> None:
        """Wait until every partition of the wave is at its target, or given up."""
        may_begin = not self._waits_for_others
        for _ in pauses(self._deadline, _MAX_PAUSE_S):
            if not may_begin:
                obstacle = self._others(controller)
                if obstacle:
                    self._line.show(f"{self._name(wave)} waits: {obstacle}")
                    continue
                may_begin = True
            wave.step(admin, controller)
            if not wave.open:
                return
            self._line.show(self._progress(wave))
        raise PlanIncompleteError(
            f"{self._name(wave)} is not over after {self._wave_timeout_s:g} s:"
            f" {wave.waits() if may_begin else obstacle};"
            " run the same command again to continue",
            self.summary(),
        )

    @property
    def _deadline(self) -> float:
        return self._wave_started + self._wave_timeout_s

    def _wave_s(self) -> float:
        return time.monotonic() - self._wave_started

    # --- others -----------------------------------------------------------------------------------

    def _refuse_if_others_move(self, controller: ControllerRef) -> None:
        answer = controller.ask_until_answered(
            ListPartitionReassignmentsRequest(),
            ListPartitionReassignmentsResponse,
            deadline=time.monotonic() + _FIRST_ANSWER_S,
        )
        others = self._moved_by_others(answer)
        if others:
            raise RegentError(
                f"others are moving {listed(others)}: wait until that is done"
                f" (`{program()} reassign --list`), or move more at a time with --additional"
            )

    def _others(self, controller: ControllerRef) -> str:
        """Return why no wave may begin now; empty when one may."""
        answer = controller.ask(
            ListPartitionReassignmentsRequest(),
            ListPartitionReassignmentsResponse,
            deadline=time.monotonic() + _ANSWER_S,
        )
        if answer is None:
            return controller.failure
        others = self._moved_by_others(answer)
        return f"others move {listed(others)}" if others else ""

    def _moved_by_others(self, answer: ListPartitionReassignmentsResponse) -> list[TopicPartition]:
        return sorted(
            partition
            for row in answer.partitions
            if self._targets.get(partition := TopicPartition(row.topic, row.partition))
            != tuple(b for b in row.replicas if b not in row.removing_replicas)
        )

    # --- messages ---------------------------------------------------------------------------------

    def _name(self, wave: Wave) -> str:
        return f"wave {wave.number} of {len(self._plan.waves)}"

    def _progress(self, wave: Wave) -> str:
        waits = wave.waits(only_stuck=True)
        return (
            f"{self._name(wave)}: {len(wave.open)} of {counted(wave.size, 'partition')} left"
            f" after {self._wave_s():.0f} s{f', {waits}' if waits else ''}"
        )

    def _left_alone(self) -> str:
        changed = [
            f"{partition} (now on {','.join(map(str, replicas))})"
            for wave in self._waves
            for partition, replicas in wave.changed.items()
        ]
        refused = [
            f"{partition} ({reason})"
            for wave in self._waves
            for partition, reason in wave.refused.items()
        ]
        problems = []
        if changed:
            problems.append(f"changed meanwhile and left alone: {listed(changed)}")
        if refused:
            problems.append(f"not moved: {listed(refused)}")
        return "; ".join(problems)

    def summary(self) -> dict[str, Any]:
        """Return what is done, in which time, and what is not."""
        seconds = round(time.monotonic() - self._started, 3)
        return {**_summary(self._plan, self._waves), "seconds": seconds}


def _controller_of(admin: ZkAdminStore) -> ControllerRef:
    return ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID)


# --- the command ----------------------------------------------------------------------------------


@click.command(
    "execute", help="Submit the waves of a plan to the controller, or resume an execution."
)
@click.argument("plan", type=click.Path(path_type=Path, file_okay=False))
@cluster_options
@click.option(
    "--wave-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=WAVE_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a wave may take.",
)
@click.option(
    "--additional", is_flag=True, help="Begin even while other reassignments are in progress."
)
@click.option("--dry-run", is_flag=True, help="Show the remaining waves and begin nothing.")
def execute_command(
    plan: Path,
    zookeeper: str | None,
    data_dir: Path,
    wave_timeout: float,
    *,
    additional: bool,
    dry_run: bool,
) -> None:
    """Execute a plan, or show its progress."""
    address = zookeeper_address(zookeeper, data_dir)
    if dry_run:
        print_summary(inspect_plan(plan, address))
        return
    try:
        summary = execute_plan(plan, address, wave_timeout_s=wave_timeout, additional=additional)
    except PlanIncompleteError as error:
        print_summary(error.summary)
        raise
    print_summary(summary)
