"""``topics create``: one topic, or all topics of a file."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import click

from regent.cli.find_cluster import Cluster, pass_cluster
from regent.cli.new_topics import (
    ClusterContent,
    WantedTopic,
    check_topics,
    parse_config,
    parse_replica_assignment,
    parse_topics_file,
)
from regent.cli.output import Output, counted, examples, listed, note, output_option, print_json
from regent.cli.placement import (
    PlacementOptions,
    place_topics,
    placement_options,
    placement_request,
)
from regent.cli.topic_options import TopicError, read_live_brokers, topic_argument
from regent.cli.waiting import timeout_option
from regent.core.admin.admin_requests import NewTopic
from regent.core.errors import Errors
from regent.core.model import BrokerId, BrokerRegistration, ReplicaAssignment
from regent.core.protocol.placement import PlacementSpec
from regent.zk.codecs.znodes import encode_topic_id
from regent.zk.stores.admin_store import ZkAdminStore


@click.command(
    epilog=examples(
        "topics create payments --partitions 12 --replication-factor 3",
        "topics create audit --partitions 1 --replication-factor 3 --config retention.ms=-1",
        "topics create pinned --replica-assignment 0:1:2,1:2:0",
        "topics create --from-file topics.json",
    )
)
@topic_argument
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
@timeout_option("How long to wait until every partition has a leader.")
@output_option
@pass_cluster
def create(
    cluster: Cluster,
    /,
    name: str | None,
    file: BinaryIO | None,
    if_not_exists: bool,
    placement: PlacementOptions,
    timeout_ms: int,
    output: str,
    **shape: Any,
) -> None:
    """Create one topic, or all topics of a file, and wait until they have leaders.

    The file is a list of {"topic", "partitions", "replication_factor", "config"?}. Everything is
    checked before anything is written.
    """
    from regent.cli.await_leaders import await_leaders

    wanted = _wanted_topics(name, file, **shape)
    with cluster.admin() as admin:
        brokers = read_live_brokers(admin)
        content = ClusterContent(
            brokers, admin.topics.read_topic_names(), admin.topics.read_topics_being_deleted()
        )
        missing = check_topics(wanted, content, may_exist=if_not_exists)
        for topic in sorted({w.topic for w in wanted} - {m.topic for m in missing}):
            note(f"topic {topic} already exists")
        placed = _place(cluster, admin, missing, brokers, placement)
        created = _create(admin, missing, placed)
        counts = {topic: len(new.partitions) for topic, new in created.items()}
        await_leaders(admin, counts, timeout_ms=timeout_ms)
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
        return parse_topics_file(file.read(), getattr(file, "name", "standard input"))
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


def _place(
    cluster: Cluster,
    admin: ZkAdminStore,
    wanted: Sequence[WantedTopic],
    brokers: Mapping[BrokerId, BrokerRegistration],
    options: PlacementOptions,
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
        placed |= place_topics(cluster, request, options)
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
    outcomes = admin.topics.create_topics(new_topics)
    too_large = [o.message for o in outcomes.values() if o.error_code is Errors.INVALID_PARTITIONS]
    if too_large:
        raise TopicError("\n".join(too_large))
    return {
        topic: new for topic, new in new_topics.items() if outcomes[topic].error_code is Errors.NONE
    }


def _print_created(created: Mapping[str, NewTopic], output: str) -> None:
    if output == Output.JSON:
        print_json([_created_json(topic, new) for topic, new in sorted(created.items())])
        return
    for topic, new in sorted(created.items()):
        click.echo(
            f"Created topic {topic} ({counted(len(new.partitions), 'partition')},"
            f" replication factor {len(new.partitions[0].replicas)})."
        )


def _created_json(topic: str, new: NewTopic) -> dict[str, object]:
    return {
        "topic": topic,
        "topic_id": new.topic_id,
        "partitions": len(new.partitions),
        "replication_factor": len(new.partitions[0].replicas),
    }
