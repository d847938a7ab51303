"""``reassign --execute``, ``--cancel`` and ``--list``: requests to the controller and to brokers.

Messages and their sequence are those of Kafka's ``ReassignPartitionsCommand``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple, TypeAlias

import click
import orjson

from regent.cli.output import Output, note, print_json
from regent.cli.remote_actors import controller_of
from regent.cli.topic_options import read_existing
from regent.cli.waiting import Explained, Progress
from regent.client.flight import Flight, ongoing_reassignments
from regent.client.live_brokers import not_registered, read_live_brokers
from regent.client.log_dir_moves import LogDirMoveState, LogDirs
from regent.client.move_pause import half_paused, paused_for, refuse_if_paused, slow_new_moves
from regent.client.move_throttle import write_log_dirs_throttle, write_throttle
from regent.client.moves import Move, ReassignmentError, as_moves, ids
from regent.client.obstacles import move_obstacles, move_throttles
from regent.client.partition_files import ReassignmentFile, TopicPartitionReplica, reassignment_json
from regent.client.pauses import pauses
from regent.client.wording import listed
from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition
from regent.zk.stores.admin_store import ZkAdminStore

_NAMED_PARTITIONS = 20

Replicas: TypeAlias = Mapping[TopicPartition, tuple[BrokerId, ...]]


class Throttles(NamedTuple):
    """In bytes a second; None: the present limit stays, if there is one."""

    replication: int | None
    log_dirs: int | None


def execute(
    admin: ZkAdminStore,
    plan: ReassignmentFile,
    throttles: Throttles,
    *,
    additional: bool,
    wait: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Print the current assignment for a rollback, set throttles, and begin reassignments.

    With ``wait``, wait until they are complete. Raises ``ReassignmentError`` with the partitions
    that were refused, did not complete, or cannot be slowed; the others are being reassigned.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    refuse_if_paused(admin)
    targets = plan.replicas
    current = {p: a.origin_replicas for p, a in _assignments(admin, targets).items()}
    _check_brokers(admin, targets, current)
    log_dirs = LogDirs(read_live_brokers(admin))
    places = {m.replica: m.current for m in log_dirs.check(plan.log_dirs) if m.current is not None}
    with controller_of(admin) as controller:
        ongoing = ongoing_reassignments(controller, None, deadline=deadline)
        if not additional:
            _refuse_if_busy(admin, ongoing)
        _print_rollback(current, places, output)
        moves = {p: Move(p, current[p], target) for p, target in sorted(targets.items())}
        limited = (as_moves(ongoing) | moves).values()  # those in progress, and those that begin
        _throttle(admin, throttles, limited, {r.broker_id for r in plan.log_dirs}, output)
        # Brokers remember where to create the replicas that they do not have yet.
        log_dirs.alter({r: path for r, path in plan.log_dirs.items() if r not in places})
        flight = Flight(list(moves.values()))
        flight.submit_all(controller, deadline=deadline)
    started = list(flight.in_flight)
    moved = {r: path for r, path in plan.log_dirs.items() if r.topic_partition in flight.in_flight}
    which = f"partition {_reassignments(started)} for {_named(started)}"
    if started:
        _say(f"Successfully started {which}", output)
    failure = _slow(admin)
    problems = ["Error reassigning partition(s):", *_lines(flight)] if flight.refused else []
    problems += failure + _begin_log_dir_moves(log_dirs, moved, deadline=deadline, output=output)
    if started and wait and not failure:
        unfinished = _await_moves(admin, flight, timeout_ms, deadline)
        unfinished += _await_log_dir_moves(log_dirs, moved, timeout_ms, deadline)
        problems += unfinished
        if not unfinished:
            _say(f"Successfully completed {which}", output)
    if problems:
        raise ReassignmentError("\n".join(problems))


def _slow(admin: ZkAdminStore) -> list[str]:
    """Slow what has begun if moves are paused: that pause may not have listed it.

    Return why not.
    """
    try:
        slow_new_moves(admin)
    except ReassignmentError as error:
        return [str(error)]
    except RegentError as error:
        return [f"{error}; {half_paused()}"]
    return []


def cancel(admin: ZkAdminStore, plan: ReassignmentFile, *, timeout_ms: int, output: str) -> None:
    """Cancel the reassignments and the moves between log directories that are in progress."""
    deadline = time.monotonic() + timeout_ms / 1000
    with controller_of(admin) as controller:
        found = ongoing_reassignments(controller, sorted(plan.replicas), deadline=deadline)
        flight = Flight(list(as_moves(found).values()))
        flight.submit_all(controller, deadline=deadline, is_cancelled=True)
    cancelled = list(flight.in_flight)
    log_dirs = LogDirs(read_live_brokers(admin))
    back = {
        move.replica: move.current
        for move in log_dirs.moves(plan.log_dirs)
        if move.state is LogDirMoveState.IN_PROGRESS and move.current is not None
    }
    if output == Output.JSON:
        rows: list[dict[str, object]] = [{"topic": topic, "partition": n} for topic, n in cancelled]
        rows += [{**r.topic_partition._asdict(), "broker": r.broker_id} for r in sorted(back)]
        print_json(rows)
    elif cancelled:
        click.echo(
            f"Successfully cancelled partition {_reassignments(cancelled)} for: {_named(cancelled)}"
        )
    elif not flight.refused:
        click.echo("None of the specified partition reassignments are active.")
    if plan.log_dirs and not back:
        _say("None of the specified partition moves are active.", output)
    unfinished = _begin_log_dir_moves(log_dirs, back, deadline=deadline, output=output)
    if flight.refused:
        what = f"Error cancelling partition {_reassignments(flight.refused)} for:"
        unfinished = [what, *_lines(flight), *unfinished]
    if unfinished:
        raise ReassignmentError("\n".join(unfinished))


def print_ongoing(admin: ZkAdminStore, *, timeout_ms: int, output: str) -> None:
    """Print the reassignments in progress."""
    deadline = time.monotonic() + timeout_ms / 1000
    with controller_of(admin) as controller:
        ongoing = ongoing_reassignments(controller, None, deadline=deadline)
    if why := paused_for(admin):
        note(why)
    if output == Output.JSON:
        print_json([{**p._asdict(), **asdict(moving)} for p, moving in ongoing.items()])
    elif ongoing:
        lines = (_ongoing_line(p, moving) for p, moving in ongoing.items())
        click.echo("\n".join(["Current partition reassignments:", *lines]))
    else:
        click.echo("No partition reassignments found.")


def is_any_ongoing(admin: ZkAdminStore, *, timeout_ms: int) -> bool:
    """Ask the controller whether any partition is being reassigned."""
    deadline = time.monotonic() + timeout_ms / 1000
    with controller_of(admin) as controller:
        return bool(ongoing_reassignments(controller, None, deadline=deadline))


# --- before ---------------------------------------------------------------------------------------


def _assignments(admin: ZkAdminStore, targets: Replicas) -> dict[TopicPartition, ReplicaAssignment]:
    """Return the assignments of the partitions; raises ``ReassignmentError``."""
    topics = read_existing(admin, sorted({partition.topic for partition in targets}))
    current: dict[TopicPartition, ReplicaAssignment] = {}
    problems = []
    for partition in sorted(targets):
        topic = topics.get(partition.topic)
        if isinstance(topic, BadDataError):
            raise topic
        assignment = None if topic is None else topic.partitions.get(partition.partition)
        if assignment is None:
            problems.append(f"partition {partition} does not exist")
        else:
            current[partition] = assignment
    if problems:
        raise ReassignmentError("\n".join(problems))
    return current


def _check_brokers(admin: ZkAdminStore, targets: Replicas, current: Replicas) -> None:
    """Refuse targets that are not registered, unless the broker has the replica already."""
    live = read_live_brokers(admin)
    for partition, replicas in sorted(targets.items()):
        for broker_id in replicas:
            if broker_id not in live and broker_id not in current[partition]:
                problem = not_registered(broker_id, live)
                raise ReassignmentError(f"partition {partition}: {problem}")


def _refuse_if_busy(admin: ZkAdminStore, being_moved: Collection[TopicPartition]) -> None:
    busy = {*being_moved, *admin.read_pending_reassignments()}
    if busy:
        raise ReassignmentError(
            "Cannot execute because there is an existing partition assignment: of"
            f" {listed(sorted(busy), 5)}. Use --additional to override this and create a new"
            " partition assignment in addition to the existing one."
        )


def _print_rollback(
    current: Replicas, places: Mapping[TopicPartitionReplica, str], output: str
) -> None:
    """Print the present replicas, and the log directories of those that may be moved."""
    content = reassignment_json(current, places)
    if output == Output.JSON:
        print_json(content)
        return
    click.echo(
        f"Current partition replica assignment\n\n{orjson.dumps(content).decode()}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )


def _throttle(
    admin: ZkAdminStore,
    throttles: Throttles,
    moves: Collection[Move],
    log_dir_brokers: Collection[BrokerId],
    output: str,
) -> None:
    """Set throttles before the reassignment, so that they limit its first byte too."""
    if throttles != (None, None):
        note(
            "Warning: You must run --verify periodically, until the reassignment completes, to"
            " ensure the throttle is removed."
        )
    if throttles.replication is not None:
        write_throttle(admin.configs, moves, throttles.replication)
        _say(f"The inter-broker throttle limit was set to {throttles.replication} B/s", output)
    if throttles.log_dirs is not None:
        write_log_dirs_throttle(admin.configs, log_dir_brokers, throttles.log_dirs)
        _say(f"The replica-alter-dir throttle limit was set to {throttles.log_dirs} B/s", output)
    slow_new_moves(admin)  # the throttle may be higher than that of a pause
    refuse_if_paused(admin)


# --- messages -------------------------------------------------------------------------------------


def _say(message: str, output: str) -> None:
    """Print a message; with JSON output on stderr, because stdout has one document."""
    if output == Output.JSON:
        note(message)
    else:
        click.echo(message)


def _ongoing_line(topic_partition: TopicPartition, moving: ReplicaAssignment) -> str:
    changes = ((" adding", moving.adding_replicas), (" removing", moving.removing_replicas))
    return f"{topic_partition}: replicas: {ids(moving.replicas)}." + "".join(
        f"{what}: {ids(brokers)}." for what, brokers in changes if brokers
    )


def _reassignments(partitions: Collection[TopicPartition]) -> str:
    return "reassignment" if len(partitions) == 1 else "reassignments"


def _named(partitions: Sequence[TopicPartition]) -> str:
    return listed(partitions, _NAMED_PARTITIONS, separator=",")


def _lines(flight: Flight) -> list[str]:
    return [f"{partition}: {why}" for partition, why in sorted(flight.refused.items())]


def _await_moves(
    admin: ZkAdminStore, flight: Flight, timeout_ms: int, deadline: float
) -> list[str]:
    """Wait until no partition is being reassigned; return the problems.

    Those are partitions with other replicas than the target, and partitions that are still being
    reassigned at ``deadline``, which is ``timeout_ms`` after the start of the command.
    """
    total = flight.left
    obstacles = Explained(
        "the reassignment waits",
        lambda: move_obstacles(admin, flight.in_flight) + move_throttles(admin, flight.in_flight),
        first_s=5.0,
    )
    try:
        with Progress("moving", total, "partitions") as progress:
            for is_new in flight.steps(admin, deadline=deadline):
                progress.remain(flight.left)
                if is_new:
                    obstacles.heard()
                if flight.left:
                    obstacles.check()
    except KeyboardInterrupt:
        note("the reassignment goes on; --verify shows how far it has come, --cancel stops it")
        raise
    problems = [str(standing) for standing in flight.changed.values()]
    if flight.left:
        problems.append(
            f"{flight.left}/{total} partitions remain to be moved after {timeout_ms} ms:"
            f" {listed(sorted(flight.in_flight), 5)} (it goes on: --verify shows how far it has"
            f" come){obstacles.because()}"
        )
    return problems


# --- log directories ------------------------------------------------------------------------------


def _begin_log_dir_moves(
    log_dirs: LogDirs, targets: Mapping[TopicPartitionReplica, str], *, deadline: float, output: str
) -> list[str]:
    """Begin to move replicas, those on new brokers when they exist; return the problems."""
    pending = dict(targets)
    for _ in pauses(deadline) if pending else ():
        for replica in sorted(log_dirs.alter(pending)):
            _say(
                f"Successfully started moving log directory to {pending.pop(replica)} for replica"
                f" {replica.topic_partition} with broker {replica.broker_id}",
                output,
            )
        if not pending:
            break
    if not pending:
        return []
    moves = "move" if len(pending) == 1 else "moves"
    named = listed(sorted(pending), _NAMED_PARTITIONS, separator=",")
    return [f"Timed out before log directory {moves} could be started for: {named}"]


def _await_log_dir_moves(
    log_dirs: LogDirs,
    targets: Mapping[TopicPartitionReplica, str],
    timeout_ms: int,
    deadline: float,
) -> list[str]:
    """Wait until every replica is in its directory; return the problems, as ``await_moves``."""
    remaining = dict(targets)
    problems: list[str] = []
    reason = ""
    with Progress("moving", len(targets), "replicas between log directories") as progress:
        for _ in pauses(deadline) if remaining else ():
            try:
                moves = log_dirs.moves(remaining)
                reason = ""
            except ReassignmentError as error:  # a broker that restarts, for instance
                reason, moves = f" ({error})", []
            problems += [str(m) for m in moves if m.state is LogDirMoveState.NOT_ACTIVE]
            for move in moves:
                if move.state in (LogDirMoveState.COMPLETE, LogDirMoveState.NOT_ACTIVE):
                    del remaining[move.replica]
            progress.remain(len(remaining))
            if not remaining:
                break
    if remaining:
        problems.append(
            f"{len(remaining)}/{len(targets)} replicas remain to be moved between log directories"
            f" after {timeout_ms} ms: {listed(sorted(remaining), 5)}{reason} (it goes on: --verify"
            " shows how far it has come)"
        )
    return problems
