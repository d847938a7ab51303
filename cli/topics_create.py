"""``topics create``: one topic, or all topics of a file."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, BinaryIO

import click

from regent.cli.new_topics import (
    not_positive,
    parse_config,
    parse_replica_assignment,
    parse_topics_file,
)
from regent.cli.output import Output, examples, note, output_option, print_json
from regent.cli.placement import placement_options
from regent.cli.remote_actors import controller_of
from regent.cli.topic_options import topic_argument
from regent.cli.waiting import Waiting, timeout_option
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.controller_ref import ControllerRef
from regent.client.topics import (
    TopicsClient,
    TopicsRefusedError,
    creation,
    new_topic_id,
    raise_if_refused,
)
from regent.client.wording import counted
from regent.core.errors import ApiError, Errors
from regent.core.ports import TopicAssignment
from regent.core.protocol.topics import (
    UNSET,
    AssignedPartition,
    ConfigEntry,
    CreatableTopic,
    PlacementOptions,
    TopicOutcome,
)
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
@click.option(
    "--from-file",
    "file",
    type=click.File("rb"),
    metavar="FILE",
    help="Create the topics of a JSON file.",
)
@click.option(
    "--partitions", type=int, help="Number of partitions.  [default: num_partitions of the broker]"
)
@click.option(
    "--replication-factor",
    type=int,
    help="Number of replicas of each partition.  [default: default_replication_factor]",
)
@click.option(
    "--replica-assignment",
    metavar="0:1:2,1:2:0",
    help="The brokers of each partition, instead of the two options above.",
)
@click.option("--config", multiple=True, metavar="NAME=VALUE", help="Override a setting.")
@click.option("--if-not-exists", is_flag=True, help="Skip topics that exist.")
@placement_options
@timeout_option("Time to wait until every partition has a leader.")
@output_option
@pass_cluster
def create(
    cluster: Cluster,
    /,
    name: str | None,
    file: BinaryIO | None,
    if_not_exists: bool,
    placement: PlacementOptions,
    placement_timeout_ms: int,
    timeout_ms: int,
    output: str,
    **shape: Any,
) -> None:
    """Create one topic, or all topics of a file, and wait until they have leaders.

    The file is a list of {"topic", "partitions", "replication_factor", "config"?}. Everything is
    checked before anything is written.
    """
    wanted = _wanted_topics(name, file, **shape)
    with cluster.admin() as admin, controller_of(admin) as controller:
        problems = _client(controller, timeout_ms).validate(wanted, placement)
        if if_not_exists:
            deleted = admin.topics.read_topics_being_deleted()
            problems = _without_existing(problems, deleted)
        if any(problem.message for problem in problems.values()):
            raise TopicsRefusedError([problem.message for problem in problems.values()])
        missing = [
            topic._replace(topic_id=new_topic_id())
            for topic in sorted(wanted, key=lambda topic: topic.topic)
            if topic.topic not in problems
        ]
        placement_deadline = time.monotonic() + placement_timeout_ms / 1000
        outcomes = _create(controller, missing, placement, placement_deadline, timeout_ms)
        created = [t for t in missing if outcomes[t.topic].error_code is Errors.NONE]
        _print_created(_with_defaults(admin, created), output)
    raise_if_refused(outcomes.values())


def _wanted_topics(
    name: str | None,
    file: BinaryIO | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    config: Sequence[str],
) -> Sequence[CreatableTopic]:
    shape = (partitions, replication_factor, replica_assignment)
    if file is not None:
        if name is not None or config or any(value is not None for value in shape):
            raise click.UsageError(
                "--from-file takes no name, partitions, replicas or configuration:"
                " put them into the file"
            )
        return parse_topics_file(file.read(), getattr(file, "name", "standard input"))
    if name is None:
        raise click.UsageError("which topic? Give a name, or --from-file")
    try:
        overrides = tuple(ConfigEntry(*setting) for setting in parse_config(config).items())
    except ValueError as error:
        raise click.UsageError(f"--config {error}") from None
    if replica_assignment is None:
        numbers = {"partitions": partitions, "replication_factor": replication_factor}
        given = {key: number for key, number in numbers.items() if number is not None}
        problems = not_positive(**given)
        if problems:
            raise TopicsRefusedError([f"topic {name}: {problem}" for problem in problems])
        count, factor = (given.get(key, UNSET) for key in numbers)
        return [CreatableTopic(name, count, factor, config=overrides)]
    if partitions is not None or replication_factor is not None:
        raise click.UsageError(
            "--replica-assignment goes without --partitions and --replication-factor"
        )
    try:
        assignment = parse_replica_assignment(replica_assignment)
    except ValueError as error:
        raise click.UsageError(f"--replica-assignment: {error}") from None
    rows = tuple(AssignedPartition(*row) for row in enumerate(assignment))
    return [CreatableTopic(name, assignment=rows, config=overrides)]


def _client(controller: ControllerRef, timeout_ms: int) -> TopicsClient:
    return TopicsClient(controller, deadline=time.monotonic() + timeout_ms / 1000)


def _without_existing(
    problems: Mapping[str, ApiError], being_deleted: Collection[str]
) -> dict[str, ApiError]:
    """Print the topics that exist already, and remove their messages: they are no problem."""
    kept = {}
    for topic, problem in problems.items():
        exists = problem.error_code is Errors.TOPIC_ALREADY_EXISTS
        if exists and topic not in being_deleted:
            note(problem.message)
            problem = ApiError(problem.error_code)
        kept[topic] = problem
    return kept


def _create(
    controller: ControllerRef,
    topics: Sequence[CreatableTopic],
    placement: PlacementOptions,
    placement_deadline: float,
    timeout_ms: int,
) -> dict[str, TopicOutcome]:
    """Create the topics once the placement service has started; return the outcome of each."""
    outcomes: dict[str, TopicOutcome] = {}
    notes: dict[str, None] = {}
    with Waiting() as waiting:
        unplaced = [topic for topic in topics if topic.assignment is None]
        if unplaced:
            _client(controller, timeout_ms).await_placement_service(
                creation(unplaced[:1], placement),
                lambda starting: waiting.say(f"placement: {starting}"),
                deadline=placement_deadline,
            )
        waiting.say(f"creating {counted(len(topics), 'topic')}")
        client = _client(controller, timeout_ms)
        for response in client.create(topics, placement, waits=True):
            outcomes |= {outcome.topic: outcome for outcome in response.outcomes}
            notes[response.placement_note] = None
            waiting.say(f"creating topics: {len(outcomes)} of {len(topics)}")
    for line in filter(None, notes):
        note(line)
    return outcomes


def _with_defaults(admin: ZkAdminStore, created: Sequence[CreatableTopic]) -> list[CreatableTopic]:
    """Replace the numbers that the user did not give by those that the broker chose."""
    unset = [t.topic for t in created if t.assignment is None and UNSET in t]
    read = admin.topics.read_topics(unset).items()
    chosen = {topic: found for topic, found in read if isinstance(found, TopicAssignment)}
    return [_with_numbers(t, chosen[t.topic]) if t.topic in chosen else t for t in created]


def _with_numbers(topic: CreatableTopic, chosen: TopicAssignment) -> CreatableTopic:
    partitions = chosen.partitions
    return topic._replace(
        partitions=len(partitions), replication_factor=len(partitions[0].replicas)
    )


def _print_created(created: Sequence[CreatableTopic], output: str) -> None:
    if output == Output.JSON:
        print_json([_created_json(topic) for topic in created])
        return
    for topic in created:
        partitions, factor = _shape(topic)
        click.echo(
            f"Created topic {topic.topic} ({counted(partitions, 'partition')},"
            f" replication factor {factor})."
        )


def _created_json(topic: CreatableTopic) -> dict[str, object]:
    partitions, factor = _shape(topic)
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partitions": partitions,
        "replication_factor": factor,
    }


def _shape(topic: CreatableTopic) -> tuple[int, int]:
    """Return the numbers of partitions and of replicas of a topic."""
    if topic.assignment is None:
        return topic.partitions, topic.replication_factor
    return len(topic.assignment), len(topic.assignment[0].replicas)
