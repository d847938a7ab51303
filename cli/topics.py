"""``topics``: create, list, describe and alter."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO, NoReturn, TypeVar

import click

from cli.find_cluster import Cluster, pass_cluster
from cli.new_topics import (
    ClusterContent,
    WantedTopic,
    check_topics,
    parse_config,
    parse_replica_assignment,
    parse_topics_file,
)
from cli.output import Output, counted, listed, note, output_option, print_json
from cli.partitions import Partition, Topics, read_partitions
from cli.placement import (
    PlacementOptions,
    place_topics,
    placement_options,
    placement_request,
    service_option,
)
from core.errors import BadDataError, RegentError
from core.model import BrokerId, BrokerRegistration, ReplicaAssignment
from core.protocol import PlacementSpec
from zk.admin import (
    AddPartitionsOutcome,
    CreateTopicOutcome,
    NewTopic,
    ZkAdminStore,
)
from zk.znodes import encode_topic_id

F = TypeVar("F", bound=Callable[..., Any])


class TopicError(RegentError):
    """A topic is not what the command needs it to be."""


@click.group()
def topics() -> None:
    """Create, list, describe and grow topics."""


def _timeout_option(command: F) -> F:
    return click.option(
        "--timeout-ms",
        type=click.IntRange(min=0),
        default=30_000,
        show_default=True,
        help="How long to wait until every partition has a leader.",
    )(command)


def _topic_option(command: F) -> F:
    """Accept ``--topic NAME``, as Kafka's tools do, where the name is an argument."""
    return click.option("--topic", "topic_option", metavar="NAME", hidden=True)(command)


def _one_name(name: str | None, option: str | None) -> str | None:
    if name is not None and option is not None:
        raise click.UsageError("the topic is named twice")
    return option if name is None else name


# --- create ---------------------------------------------------------------------------------------


@topics.command()
@click.argument("name", required=False)
@_topic_option
@click.option("--from-file", "file", type=click.File("rb"), metavar="FILE", help="Many topics.")
@click.option("--partitions", type=int, help="How many partitions.")
@click.option("--replication-factor", type=int, help="Replicas of each partition.")
@click.option(
    "--replica-assignment",
    metavar="0:1:2,1:2:0",
    help="The brokers of each partition, instead of the two options above.",
)
@click.option("--config", multiple=True, metavar="NAME=VALUE", help="Override a setting.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing about a topic that exists.")
@placement_options
@_timeout_option
@output_option
@pass_cluster
def create(
    cluster: Cluster,
    name: str | None,
    topic_option: str | None,
    file: BinaryIO | None,
    if_not_exists: bool,
    strategy: str,
    start_index: str,
    index: str,
    placement_service: bool,
    timeout_ms: int,
    output: str,
    **shape: Any,
) -> None:
    r"""Create one topic, or all topics of a file, and wait until they have leaders.

    \b
    regent topics create payments --partitions 12 --replication-factor 3
    regent topics create audit --partitions 1 --replication-factor 3 --config min.insync.replicas=2
    regent topics create pinned --replica-assignment 0:1:2,1:2:0
    regent topics create --from-file topics.json

    The file is a list of {"topic", "partitions", "replication_factor", "config"?}. Everything is
    checked before anything is written.
    """
    wanted = _wanted_topics(_one_name(name, topic_option), file, **shape)
    options = PlacementOptions(strategy, start_index, index)
    with cluster.admin() as admin:
        brokers = _live_brokers(admin)
        content = ClusterContent(
            brokers, admin.read_topic_names(), admin.read_topics_being_deleted()
        )
        missing = check_topics(wanted, content, may_exist=if_not_exists)
        for topic in sorted({w.topic for w in wanted} - {m.topic for m in missing}):
            note(f"topic {topic} already exists")
        placed = _place(cluster, admin, missing, brokers, options, use_service=placement_service)
        created = _create(admin, missing, placed)
        _await_leaders(admin, {t: len(new.partitions) for t, new in created.items()}, timeout_ms)
    _print_created(created, output)
    lost = [topic.topic for topic in missing if topic.topic not in created]
    if lost:
        raise TopicError(f"created by somebody else at the same time: {listed(lost)}")


def _wanted_topics(
    name: str | None,
    file: BinaryIO | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    config: Sequence[str],
) -> list[WantedTopic]:
    given = (partitions, replication_factor, replica_assignment)
    if file is not None:
        if name is not None or config or any(value is not None for value in given):
            raise click.UsageError("with --from-file the file says it all: name and shape go there")
        return parse_topics_file(file.read(), file.name)
    if name is None:
        raise click.UsageError("which topic? Give a name, or --from-file")
    try:
        overrides = parse_config(config)
    except ValueError as error:
        raise click.UsageError(f"--config {error}") from None
    if replica_assignment is None:
        if partitions is None or replication_factor is None:
            raise click.UsageError(
                "--partitions and --replication-factor are needed, or --replica-assignment"
            )
        return [WantedTopic(name, partitions, replication_factor, overrides)]
    if partitions is not None or replication_factor is not None:
        raise click.UsageError(
            "--replica-assignment goes without --partitions and --replication-factor"
        )
    try:
        assignment = parse_replica_assignment(replica_assignment)
    except ValueError as error:
        raise click.UsageError(f"--replica-assignment: {error}") from None
    return [WantedTopic(name, len(assignment), len(assignment[0]), overrides, assignment)]


def _live_brokers(admin: ZkAdminStore) -> dict[BrokerId, BrokerRegistration]:
    return {
        broker_id: registration
        for broker_id, registration in admin.read_brokers().items()
        if not isinstance(registration, BadDataError)
    }


def _place(
    cluster: Cluster,
    admin: ZkAdminStore,
    wanted: Sequence[WantedTopic],
    brokers: Mapping[BrokerId, BrokerRegistration],
    options: PlacementOptions,
    *,
    use_service: bool,
) -> dict[str, dict[int, tuple[BrokerId, ...]]]:
    """Return the replicas of every partition by topic, placed or as they were asked for."""
    placed = {w.topic: dict(enumerate(w.assignment)) for w in wanted if w.assignment is not None}
    specs = [
        PlacementSpec(w.topic, w.partitions, w.replication_factor, start_partition=0)
        for w in wanted
        if w.assignment is None
    ]
    if specs:
        request = placement_request(admin, specs, brokers, options)
        placed |= place_topics(cluster, request, use_service=use_service)
    return placed


def _create(
    admin: ZkAdminStore,
    wanted: Sequence[WantedTopic],
    placed: Mapping[str, Mapping[int, tuple[BrokerId, ...]]],
) -> dict[str, NewTopic]:
    """Write the topics; return those that are ours."""
    new_topics = {
        w.topic: NewTopic(
            encode_topic_id(uuid.uuid4().bytes),
            {p: ReplicaAssignment(replicas) for p, replicas in placed[w.topic].items()},
            w.config,
        )
        for w in wanted
    }
    outcomes = admin.create_topics(new_topics)
    return {
        topic: new
        for topic, new in new_topics.items()
        if outcomes[topic] is CreateTopicOutcome.CREATED
    }


def _await_leaders(admin: ZkAdminStore, partitions: Mapping[str, int], timeout_ms: int) -> None:
    from cli.await_leaders import await_leaders

    await_leaders(admin, partitions, timeout_ms=timeout_ms)


def _print_created(created: Mapping[str, NewTopic], output: str) -> None:
    rows = [
        {
            "topic": topic,
            "topic_id": new.topic_id,
            "partitions": len(new.partitions),
            "replication_factor": len(new.partitions[0].replicas),
        }
        for topic, new in sorted(created.items())
    ]
    if output == Output.JSON:
        print_json(rows)
        return
    for row in rows:
        click.echo(
            f"Created topic {row['topic']} ({counted(row['partitions'], 'partition')},"
            f" replication factor {row['replication_factor']})."
        )


# --- list -----------------------------------------------------------------------------------------


@topics.command("list")
@output_option
@pass_cluster
def list_topics(cluster: Cluster, output: str) -> None:
    """List the topics; in JSON as a list of names."""
    with cluster.admin() as admin:
        names = admin.read_topic_names()
        deleted = admin.read_topics_being_deleted()
    if output == Output.JSON:
        print_json(names)
        return
    for name in names:
        click.echo(f"{name} - marked for deletion" if name in deleted else name)


# --- describe -------------------------------------------------------------------------------------


@topics.command()
@click.argument("name", required=False)
@_topic_option
@click.option(
    "--under-replicated-partitions", is_flag=True, help="Only those with replicas out of sync."
)
@click.option("--unavailable-partitions", is_flag=True, help="Only those no live broker leads.")
@output_option
@pass_cluster
def describe(
    cluster: Cluster,
    name: str | None,
    topic_option: str | None,
    under_replicated_partitions: bool,
    unavailable_partitions: bool,
    output: str,
) -> None:
    r"""Show the partitions of one topic or of all: leader, replicas, ISR.

    \b
    regent topics describe payments
    regent topics describe --under-replicated-partitions
    regent topics describe payments -o json
    """
    name = _one_name(name, topic_option)
    is_filtered = under_replicated_partitions or unavailable_partitions
    with cluster.admin() as admin:
        live = admin.read_brokers()
        found = read_partitions(admin, admin.read_topic_names() if name is None else [name])
        configs = {} if is_filtered else admin.read_topic_configs(found.assignments)
        deleted = admin.read_topics_being_deleted()
    if name is not None and not found.assignments:
        raise TopicError(
            found.unreadable[0] if found.unreadable else f"topic {name} does not exist"
        )
    shown = [
        p
        for p in found.partitions
        if not is_filtered
        or (under_replicated_partitions and p.is_under_replicated)
        or (unavailable_partitions and p.is_unavailable(live))
    ]
    if output == Output.JSON:
        print_json([partition.as_json() for partition in shown])
    else:
        _print_partitions(shown, found, configs, deleted, with_headers=not is_filtered)
    for problem in found.unreadable:
        note(f"regent: {problem}")


def _print_partitions(
    partitions: Sequence[Partition],
    found: Topics,
    configs: Mapping[str, Mapping[str, str] | BadDataError],
    deleted: set[str],
    *,
    with_headers: bool,
) -> None:
    """Print as Kafka's own ``kafka-topics.sh --describe`` does."""
    for topic, of_topic in groupby(partitions, key=lambda p: p.topic_partition.topic):
        rows = list(of_topic)
        if with_headers:
            topic_id = found.assignments[topic].topic_id
            config = configs.get(topic, {})
            overrides = {} if isinstance(config, BadDataError) else config
            fields = [
                f"Topic: {topic}",
                *([f"TopicId: {topic_id}"] if topic_id else []),
                f"PartitionCount: {len(rows)}",
                f"ReplicationFactor: {len(rows[0].assignment.origin_replicas)}",
                f"Configs: {','.join(f'{key}={value}' for key, value in overrides.items())}",
                *(["MarkedForDeletion: true"] if topic in deleted else []),
            ]
            click.echo("\t".join(fields))
        click.echo("\n".join(map(_partition_line, rows)))


def _partition_line(partition: Partition) -> str:
    topic, number = partition.topic_partition
    assignment = partition.assignment
    fields = [
        "",
        f"Topic: {topic}",
        f"Partition: {number}",
        f"Leader: {partition.leader if partition.leader >= 0 else 'none'}",
        f"Replicas: {_ids(assignment.replicas)}",
        f"Isr: {_ids(partition.state.leader_and_isr.isr)}",
    ]
    if assignment.is_being_reassigned:
        fields.append(f"Adding Replicas: {_ids(assignment.adding_replicas)}")
        fields.append(f"Removing Replicas: {_ids(assignment.removing_replicas)}")
    return "\t".join(fields)


def _ids(brokers: Sequence[BrokerId]) -> str:
    return ",".join(map(str, brokers))


# --- alter ----------------------------------------------------------------------------------------


@topics.command()
@click.argument("name", required=False)
@_topic_option
@click.option("--partitions", type=int, required=True, help="How many there shall be in all.")
@service_option
@_timeout_option
@output_option
@pass_cluster
def alter(
    cluster: Cluster,
    name: str | None,
    topic_option: str | None,
    partitions: int,
    placement_service: bool,
    timeout_ms: int,
    output: str,
) -> None:
    r"""Give a topic more partitions; it cannot have fewer.

    \b
    regent topics alter payments --partitions 24
    """
    topic = _one_name(name, topic_option)
    if topic is None:
        raise click.UsageError("which topic? Give a name")
    with cluster.admin() as admin:
        old, replication_factor = _growing(admin, topic, partitions)
        spec = PlacementSpec(topic, partitions - old, replication_factor, start_partition=old)
        request = placement_request(admin, [spec], _live_brokers(admin), PlacementOptions())
        placed = place_topics(cluster, request, use_service=placement_service)
        added = {p: ReplicaAssignment(replicas) for p, replicas in placed[topic].items()}
        outcome = admin.add_partitions(topic, added)
        if outcome is not AddPartitionsOutcome.ADDED:
            _refuse(topic, outcome)
        _await_leaders(admin, {topic: partitions}, timeout_ms)
    if output == Output.JSON:
        print_json({"topic": topic, "partitions": partitions, "added_partitions": sorted(added)})
    else:
        click.echo(f"Topic {topic} has {counted(partitions, 'partition')} now ({old} before).")


def _growing(admin: ZkAdminStore, topic: str, partitions: int) -> tuple[int, int]:
    """Return partition count and replication factor of a topic that may grow to ``partitions``."""
    current = admin.read_topics([topic]).get(topic)
    if current is None:
        _refuse(topic, AddPartitionsOutcome.UNKNOWN_TOPIC)
    if isinstance(current, BadDataError):
        raise current
    if topic in admin.read_topics_being_deleted():
        _refuse(topic, AddPartitionsOutcome.BEING_DELETED)
    if any(assignment.is_being_reassigned for assignment in current.partitions.values()):
        _refuse(topic, AddPartitionsOutcome.BEING_REASSIGNED)
    old = len(current.partitions)
    if partitions <= old:
        relation = "already has" if partitions == old else "cannot shrink: it has"
        raise TopicError(f"topic {topic} {relation} {counted(old, 'partition')}")
    if 0 not in current.partitions:
        raise TopicError(f"topic {topic} has no partition 0")
    return old, len(current.partitions[0].replicas)


def _refuse(topic: str, outcome: AddPartitionsOutcome) -> NoReturn:
    raise TopicError(f"topic {topic} {outcome.value}")
