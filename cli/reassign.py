"""``reassign``: moves replicas, with the options, files and output of Kafka's tool (KIP-455)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, BinaryIO, TypeAlias

import click
import orjson

from regent.cli.output import Output, examples, note, output_option, print_json
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.live_brokers import not_registered, read_live_brokers
from regent.client.log_dir_moves import LogDirMoveState, LogDirs
from regent.client.move_pause import half_paused, pause_moves, paused_for, resume_moves
from regent.client.move_throttle import are_throttled, clear_throttles
from regent.client.moves import Move, ReassignmentError, read_progress
from regent.client.partition_files import (
    ReassignmentFile,
    read_reassignment_file,
    read_topics_to_move_file,
    reassignment_json,
)
from regent.client.wording import counted
from regent.config.command_line import program
from regent.core.errors import BadDataError
from regent.core.model import NO_ASSIGNMENT, BrokerId, BrokerRegistration, TopicPartition
from regent.core.placement.replica_placer import IndexScope, Strategy, place
from regent.core.ports import TopicAssignment
from regent.core.protocol.placement import (
    PlacementBroker,
    PlacementSpec,
    PlaceTopicsRequest,
    hosts_of,
)
from regent.core.topic_validation import takes_no_replicas
from regent.zk.stores.admin_store import ZkAdminStore

Replicas: TypeAlias = dict[TopicPartition, tuple[BrokerId, ...]]

_ANSWER_TIMEOUT_MS = 30_000
_WAIT_TIMEOUT_MS = 3_600_000

_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "generate": ("topics_to_move_json_file", "broker_list", "disable_rack_aware"),
    "execute": (
        *("reassignment_json_file", "additional", "wait"),
        *("throttle", "replica_alter_log_dirs_throttle"),
    ),
    "verify": ("reassignment_json_file", "preserve_throttles"),
    "cancel": ("reassignment_json_file", "preserve_throttles"),
    "list": (),
    "pause": (),
    "resume": (),
}
"""The actions, and the options of each."""

_OPTIONAL = ("throttle", "replica_alter_log_dirs_throttle")


@click.command(
    epilog=examples(
        "reassign --generate --topics-to-move-json-file topics.json --broker-list 3,4",
        "reassign --execute --reassignment-json-file moves.json --throttle 50000000 --wait",
        "reassign --verify --reassignment-json-file moves.json",
        "reassign --cancel --reassignment-json-file moves.json",
        "reassign --list",
        "reassign --pause",
    )
    + '\n\n\b\ntopics.json: {"topics": [{"topic": "t"}]}'
    + '\nmoves.json:  {"partitions": [{"topic": "t", "partition": 0, "replicas": [3, 4]}]}'
    + '\n             "log_dirs": ["any", "/disk2"] beside "replicas" moves them to directories'
)
@click.option(
    "--generate", is_flag=True, help="Propose an assignment for the partitions of topics."
)
@click.option("--execute", is_flag=True, help="Begin reassignments.")
@click.option("--verify", is_flag=True, help="Show the progress of reassignments.")
@click.option(
    "--cancel",
    is_flag=True,
    help="Cancel reassignments; the partitions keep their original replicas.",
)
@click.option("--list", is_flag=True, help="Show all reassignments in progress.")
@click.option(
    "--pause",
    is_flag=True,
    help="Slow all reassignments in progress to a trickle; plans begin no move until --resume.",
)
@click.option("--resume", is_flag=True, help="Give paused reassignments their former rates.")
@click.option(
    "--reassignment-json-file",
    type=click.File("rb"),
    metavar="FILE",
    help="The partitions and their target replicas.",
)
@click.option(
    "--topics-to-move-json-file",
    type=click.File("rb"),
    metavar="FILE",
    help="With --generate: the topics.",
)
@click.option(
    "--broker-list", metavar="ID,ID", help="With --generate: the brokers that may get replicas."
)
@click.option("--disable-rack-aware", is_flag=True, help="With --generate: ignore racks.")
@click.option(
    "--additional",
    is_flag=True,
    help="With --execute: add to the reassignments in progress, or change their throttle.",
)
@click.option(
    "--wait", is_flag=True, help="With --execute: wait until the reassignment is complete."
)
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="With --execute: limit what brokers send and fetch for the reassignment, in bytes a"
    " second. --verify removes the limit when the reassignment is complete.",
)
@click.option(
    "--replica-alter-log-dirs-throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="With --execute: limit what brokers copy between log directories, in bytes a second.",
)
@click.option(
    "--preserve-throttles",
    is_flag=True,
    help="With --verify and --cancel: leave the throttles of topics and brokers as they are.",
)
@click.option(
    *("--timeout-ms", "--timeout"),
    type=click.IntRange(min=0),
    help=f"How long to wait in all.  [default: {_ANSWER_TIMEOUT_MS}; with --wait"
    f" {_WAIT_TIMEOUT_MS}]",
)
@output_option
@pass_cluster
def reassign(cluster: Cluster, /, timeout_ms: int | None, output: str, **options: Any) -> None:
    """Move replicas to other brokers: propose, begin, watch, cancel."""
    action = _action(options)
    if timeout_ms is None:
        timeout_ms = _WAIT_TIMEOUT_MS if options["wait"] else _ANSWER_TIMEOUT_MS
    if action == "generate":
        _generate(cluster, output, **{name: options[name] for name in _ACTIONS[action]})
        return
    file: BinaryIO | None = options["reassignment_json_file"]
    plan = ReassignmentFile({}, {}) if file is None else read_reassignment_file(file)
    with cluster.admin() as admin:
        if action == "verify":
            _verify(admin, plan, output, preserve=options["preserve_throttles"])
            return
        from regent.cli import reassign_execute

        if action == "pause":
            _pause(admin, output)
        elif action == "resume":
            _resume(admin, output)
        elif action == "list":
            reassign_execute.print_ongoing(admin, timeout_ms=timeout_ms, output=output)
        elif action == "cancel":
            reassign_execute.cancel(admin, plan, timeout_ms=timeout_ms, output=output)
            if not options["preserve_throttles"]:
                _clear_throttles(admin, plan.replicas)
        else:
            throttles = reassign_execute.Throttles(
                options["throttle"], options["replica_alter_log_dirs_throttle"]
            )
            how = {"additional": options["additional"], "wait": options["wait"]}
            reassign_execute.execute(
                admin, plan, throttles, **how, timeout_ms=timeout_ms, output=output
            )


def _pause(admin: ZkAdminStore, output: str) -> None:
    try:
        count = pause_moves(admin)
    except KeyboardInterrupt:
        note(half_paused())
        raise
    if output == Output.JSON:
        print_json({"paused": count})
    else:
        click.echo(f"{counted(count, 'move')} paused; `{program()} reassign --resume` ends that.")


def _resume(admin: ZkAdminStore, output: str) -> None:
    was_paused = resume_moves(admin)
    if output == Output.JSON:
        print_json({"was_paused": was_paused})
    else:
        click.echo("The moves go on." if was_paused else "Moves are not paused.")


def _action(options: Mapping[str, object]) -> str:
    """Return the action; check that its file is given, and no option of other actions."""
    chosen = [action for action in _ACTIONS if options[action]]
    if not chosen:
        raise click.UsageError(
            f"one of {', '.join(f'--{action}' for action in _ACTIONS)} is needed"
        )
    if len(chosen) > 1:
        raise click.UsageError(
            f"only one of {', '.join(f'--{action}' for action in chosen)} may be given"
        )
    (action,) = chosen
    useful = _ACTIONS[action]
    for name in useful:
        if options[name] is None and name not in _OPTIONAL:
            raise click.UsageError(f"--{action} needs {_flag(name)}")
    for other in sorted({name for names in _ACTIONS.values() for name in names} - set(useful)):
        if options[other]:
            raise click.UsageError(f"--{action} does not take {_flag(other)}")
    return action


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _generate(
    cluster: Cluster,
    output: str,
    *,
    topics_to_move_json_file: BinaryIO,
    broker_list: str,
    disable_rack_aware: bool,
) -> None:
    topics, broker_ids = read_topics_to_move_file(topics_to_move_json_file), _ids(broker_list)
    with cluster.admin() as admin:
        brokers = _registered(admin, broker_ids)
        proposal = _propose(admin, topics, brokers, rack_aware=not disable_rack_aware)
    current, proposed = map(reassignment_json, proposal)
    if output == Output.JSON:
        print_json({"current": current, "proposed": proposed})
        return
    click.echo(f"Current partition replica assignment\n{orjson.dumps(current).decode()}\n")
    click.echo(f"Proposed partition reassignment configuration\n{orjson.dumps(proposed).decode()}")


def _ids(broker_list: str) -> list[BrokerId]:
    texts = [text.strip() for text in broker_list.split(",")]
    if not all(text.isascii() and text.isdigit() and len(text) <= 10 for text in texts):
        raise click.UsageError(
            f"--broker-list must be broker ids separated by commas, not {broker_list!r}"
        )
    ids = [int(text) for text in texts]
    if len(set(ids)) < len(ids):
        raise click.UsageError(f"--broker-list names a broker twice: {broker_list}")
    return ids


def _registered(
    admin: ZkAdminStore, broker_ids: Collection[BrokerId]
) -> dict[BrokerId, BrokerRegistration]:
    live = read_live_brokers(admin)
    for broker_id in broker_ids:
        if broker_id not in live:
            raise ReassignmentError(not_registered(broker_id, live))
        if live[broker_id].info.no_replicas:
            raise ReassignmentError(takes_no_replicas(broker_id))
    return {broker_id: live[broker_id] for broker_id in broker_ids}


def _propose(
    admin: ZkAdminStore,
    topics: Collection[str],
    brokers: Mapping[BrokerId, BrokerRegistration],
    *,
    rack_aware: bool,
) -> tuple[Replicas, Replicas]:
    """Return the current replicas of all partitions of ``topics``, and new ones on ``brokers``.

    Racks are used if ``rack_aware`` and if the brokers have racks. Raises ``ReassignmentError``,
    ``PlacementError`` and ``BadDataError``.
    """
    assignments = _existing(admin, topics)
    specs = [
        PlacementSpec(topic, len(assignment.partitions), _replication_factor(assignment), 0)
        for topic, assignment in sorted(assignments.items())
    ]
    strategy = _strategy(brokers, rack_aware=rack_aware)
    request = PlaceTopicsRequest(
        topics=tuple(specs),
        brokers=tuple(PlacementBroker(b, broker.info.rack, 0) for b, broker in brokers.items()),
        hosts=hosts_of((b, broker.info) for b, broker in brokers.items()),
        strategy=strategy,
        start_index="0",
        index=IndexScope.BATCH,
        seed=0,
    )
    current = {
        TopicPartition(topic, partition): replicas.origin_replicas
        for topic, assignment in sorted(assignments.items())
        for partition, replicas in assignment.partitions.items()
    }
    # Both are sorted; the ids of a topic's partitions are 0, 1, … unless its znode is broken.
    placed = (row.replicas for row in place(request))
    return current, dict(zip(current, placed, strict=True))


def _existing(admin: ZkAdminStore, topics: Collection[str]) -> dict[str, TopicAssignment]:
    found = admin.topics.read_topics(topics)
    absent = [f"topic {topic} does not exist" for topic in topics if topic not in found]
    if absent:
        raise ReassignmentError("\n".join(absent))
    assignments = {}
    for topic, assignment in found.items():
        if isinstance(assignment, BadDataError):
            raise assignment
        assignments[topic] = assignment
    return assignments


def _replication_factor(assignment: TopicAssignment) -> int:
    return len(next(iter(assignment.partitions.values()), NO_ASSIGNMENT).origin_replicas)


def _strategy(brokers: Mapping[BrokerId, BrokerRegistration], *, rack_aware: bool) -> str:
    without = [b for b, broker in sorted(brokers.items()) if broker.info.rack is None]
    if not rack_aware or len(without) == len(brokers):
        return Strategy.RING.value
    if without:
        raise ReassignmentError(
            f"not all brokers have a rack (broker {without[0]} has none): give every broker one, or"
            " add --disable-rack-aware"
        )
    return Strategy.RACK_AWARE.value


def _verify(admin: ZkAdminStore, plan: ReassignmentFile, output: str, *, preserve: bool) -> None:
    moves = [Move(partition, (), target) for partition, target in sorted(plan.replicas.items())]
    standings = read_progress(admin, moves)
    log_dir_moves = LogDirs(read_live_brokers(admin)).moves(plan.log_dirs)
    if output == Output.JSON:
        of_replicas: dict[TopicPartition, list[dict[str, object]]] = {}
        for replica in log_dir_moves:
            of_replicas.setdefault(replica.partition, []).append(replica.as_json())
        print_json(
            [
                {**s.as_json(), "log_dirs": of_replicas[s.move.partition]}
                if s.move.partition in of_replicas
                else s.as_json()
                for s in standings
            ]
        )
    else:
        lines = map(str, (*standings, *log_dir_moves))
        click.echo("\n".join(["Status of partition reassignment:", *lines]))
    is_over = not any(standing.is_ongoing for standing in standings)
    waiting = (LogDirMoveState.IN_PROGRESS, LogDirMoveState.MISSING)
    if is_over and not any(m.state in waiting for m in log_dir_moves) and not preserve:
        _clear_throttles(admin, plan.replicas)


def _clear_throttles(admin: ZkAdminStore, targets: Collection[TopicPartition]) -> None:
    """Remove the throttles of all brokers and of the topics, and print their names.

    They stay while another reassignment is in progress, because it may need them.
    """
    topics = {topic_partition.topic for topic_partition in targets}
    existing = sorted(admin.topics.read_topics(sorted(topics)))
    brokers = sorted(admin.read_brokers())
    if not are_throttled(admin.configs, brokers, existing):
        return
    if why := paused_for(admin):
        note(f"the throttles stay: {why}")
        return
    from regent.cli.reassign_execute import is_any_ongoing

    if is_any_ongoing(admin, timeout_ms=_ANSWER_TIMEOUT_MS):
        note("another reassignment is in progress: the throttles stay until a later --verify")
        return
    cleared = clear_throttles(admin.configs, brokers, existing)
    if cleared.brokers:
        note(f"Clearing broker-level throttles on brokers {','.join(map(str, cleared.brokers))}")
    if cleared.topics:
        note(f"Clearing topic-level throttles on topics {','.join(cleared.topics)}")
