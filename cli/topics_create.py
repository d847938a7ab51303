"""``topics create``: one topic, or all topics of a file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import click

from regent.cli.new_topics import (
    new_configs,
    out_of_range,
    parse_config,
    parse_replica_assignment,
    parse_topics_file,
)
from regent.cli.output import Output, examples, note, output_option, print_json
from regent.cli.placement import placement_options
from regent.cli.topic_options import topic_argument, topics_client
from regent.cli.waiting import MAX_INT32, Waiting, timeout_option
from regent.client.cluster_connection import Cluster, bootstrap_option, pass_cluster
from regent.client.topics import (
    AwaitService,
    TopicsClient,
    TopicsRefusedError,
    new_topic_id,
    raise_if_refused,
    slices,
)
from regent.client.wording import counted
from regent.core.errors import Errors, RegentError
from regent.core.protocol.messages.topics import (
    UNSET,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    PlacementOptions,
)


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
    "--partitions",
    type=click.IntRange(max=MAX_INT32),
    help="Number of partitions.  [default: num_partitions of the broker]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(max=2**15 - 1),
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
@bootstrap_option
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
    topics = [replace(topic, topic_id=new_topic_id()) for topic in wanted]
    names = [topic.name for topic in wanted]
    client = topics_client(cluster, timeout_ms)
    until = time.monotonic() + placement_timeout_ms / 1000
    with Waiting() as waiting:
        results = _create(
            client,
            topics,
            replace(placement, awaits_service=True),
            (waiting.say, until),
            waiting,
            if_not_exists=if_not_exists,
        )
    refused = [row for row in results if row.error_code not in (0, Errors.REQUEST_TIMED_OUT)]
    created = [row for row in results if not row.error_code]
    if created or not refused:
        _print_created(created, output)
    results.sort(key=lambda row: names.index(row.name))
    raise_if_refused(results)


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
        overrides = new_configs(parse_config(config))
    except ValueError as error:
        raise click.UsageError(f"--config {error}") from None
    if replica_assignment is None:
        numbers = {"partitions": partitions, "replication_factor": replication_factor}
        given = {key: number for key, number in numbers.items() if number is not None}
        problems = out_of_range(**given)
        if problems:
            raise TopicsRefusedError([f"topic {name}: {problem}" for problem in problems])
        count, factor = (given.get(key, UNSET) for key in numbers)
        return [
            CreatableTopic(
                name=name, num_partitions=count, replication_factor=factor, configs=overrides
            )
        ]
    if partitions is not None or replication_factor is not None:
        raise click.UsageError(
            "--replica-assignment goes without --partitions and --replication-factor"
        )
    try:
        assignment = parse_replica_assignment(replica_assignment)
    except ValueError as error:
        raise click.UsageError(f"--replica-assignment: {error}") from None
    rows = tuple(
        CreatableReplicaAssignment(partition_index=number, broker_ids=replicas)
        for number, replicas in enumerate(assignment)
    )
    return [CreatableTopic(name=name, assignments=rows, configs=overrides)]


def _create(
    client: TopicsClient,
    topics: Sequence[CreatableTopic],
    placement: PlacementOptions,
    await_service: AwaitService,
    waiting: Waiting,
    *,
    if_not_exists: bool,
) -> list[CreatableTopicResult]:
    """Create all topics or none; return the results, without the topics that may exist and do.

    Several slices are validated before the first is sent.
    """
    is_sliced = len(list(slices(topics))) > 1
    if is_sliced:
        problems = client.validate(topics, placement)
        existing = _existing(problems.values()) if if_not_exists else set()
        raise_if_refused(row for topic, row in problems.items() if topic not in existing)
        topics = [topic for topic in topics if topic.name not in existing]
    waiting.say(f"creating {counted(len(topics), 'topic')}")
    results: list[CreatableTopicResult] = []
    topics = sorted(topics, key=lambda topic: topic.name)
    try:
        for response in client.create(
            topics, placement, all_or_none=not is_sliced, await_service=await_service
        ):
            results += response.topics
            waiting.say(f"creating topics: {len(results)} of {len(topics)}")
    except RegentError as error:
        if not results:
            raise
        results += _untold(topics[len(results) :], error)
    existing = _existing(results) if if_not_exists else set()
    results = [row for row in results if row.name not in existing]
    tried = [row for row in results if row.error_code != Errors.OPERATION_NOT_ATTEMPTED]
    if tried or not results:
        return tried
    rest = [topic for topic in topics if topic.name not in existing]
    return _create(client, rest, placement, await_service, waiting, if_not_exists=if_not_exists)


def _untold(topics: Sequence[CreatableTopic], error: RegentError) -> list[CreatableTopicResult]:
    """Return results for the slices after those whose results are known."""
    return [
        CreatableTopicResult(
            name=topic.name,
            error_code=Errors.BROKER_NOT_AVAILABLE,
            error_message=f"topic {topic.name} may not be created: {error}",
        )
        for topic in topics
    ]


def _existing(results: Iterable[CreatableTopicResult]) -> set[str]:
    """Return the topics that exist already and are not being deleted; say that they exist."""
    existing = [
        row
        for row in results
        if row.error_code == Errors.TOPIC_ALREADY_EXISTS and not row.is_being_deleted
    ]
    for row in existing:
        note(row.error_message or f"topic {row.name} already exists")
    return {row.name for row in existing}


def _print_created(created: Sequence[CreatableTopicResult], output: str) -> None:
    if output == Output.JSON:
        print_json(
            [
                {
                    "topic": row.name,
                    "topic_id": row.topic_id,
                    "partitions": row.num_partitions,
                    "replication_factor": row.replication_factor,
                }
                for row in created
            ]
        )
        return
    for row in created:
        click.echo(
            f"Created topic {row.name} ({counted(row.num_partitions, 'partition')},"
            f" replication factor {row.replication_factor})."
        )
