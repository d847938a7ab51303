"""``elect-leaders``: preferred and unclean elections, with the output of Kafka's tool (KIP-460)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import click

from regent.cli.output import Output, examples, note, output_option, print_json
from regent.cli.remote_actors import controller_of
from regent.cli.waiting import timeout_option
from regent.cli.watching import complete_topics
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.controller_ref import ControllerRef, batches, refusal
from regent.client.partition_files import read_partitions_file
from regent.client.pauses import pauses
from regent.client.wording import counted, listed
from regent.core.errors import ApiError, Errors, RegentError
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.messages.partitions import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    Results,
)

_NAMED_PARTITIONS = 20


class ElectionError(RegentError):
    """Leaders of some partitions could not be elected."""


@click.command(
    epilog=examples(
        "elect-leaders --election-type preferred --all-topic-partitions",
        "elect-leaders --election-type unclean --topic payments --partition 3",
        "elect-leaders --election-type preferred --path-to-json-file partitions.json",
    )
    + '\n\n\b\npartitions.json: {"partitions": [{"topic": "t", "partition": 0}]}'
)
@click.option(
    "--election-type",
    type=click.Choice([kind.name.lower() for kind in ElectionType], case_sensitive=False),
    required=True,
    help="preferred: the first replica, if it is in sync. unclean: any live replica, for a"
    " partition without a leader; records that only other replicas have are lost.",
)
@click.option(
    "--all-topic-partitions",
    is_flag=True,
    help="Elect leaders of all partitions that need an election.",
)
@click.option(
    "--topic",
    metavar="NAME",
    shell_complete=complete_topics,
    help="The topic of a single partition.",
)
@click.option("--partition", type=click.IntRange(min=0), help="The partition of --topic.")
@click.option(
    "--path-to-json-file",
    "file",
    type=click.File("rb"),
    metavar="FILE",
    help="Elect leaders of the partitions in a JSON file.",
)
@timeout_option("Time to wait until the brokers know the new leaders.")
@output_option
@pass_cluster
def elect_leaders(
    cluster: Cluster,
    /,
    election_type: str,
    all_topic_partitions: bool,
    topic: str | None,
    partition: int | None,
    file: BinaryIO | None,
    timeout_ms: int,
    output: str,
) -> None:
    """Elect leaders of some partitions or of all."""
    kind = ElectionType[election_type.upper()]
    partitions = _partitions(all_topic_partitions, topic, partition, file)
    deadline = time.monotonic() + timeout_ms / 1000
    with cluster.admin() as admin, controller_of(admin) as controller:
        found: dict[TopicPartition, ApiError] = {}
        leaders: dict[TopicPartition, BrokerId] = {}
        for question in [None] if partitions is None else batches(partitions):
            request = ElectLeadersRequest.of(kind, question)
            answer = controller.ask_until_answered(request, ElectLeadersResponse, deadline=deadline)
            found |= answer.results
            leaders |= answer.leaders
        unknown = _await_metadata(controller, leaders, deadline)
    results = dict(sorted(found.items()))
    if output == Output.JSON:
        print_json([_result_json(p, results[p], leaders.get(p, NO_LEADER)) for p in results])
    else:
        _print_results(kind, results)
    _report_failures(kind, results, unknown, timeout_ms)


def _partitions(
    all_partitions: bool, topic: str | None, partition: int | None, file: BinaryIO | None
) -> tuple[TopicPartition, ...] | None:
    """Return the named partitions, None for all."""
    given = [all_partitions, topic is not None, file is not None].count(True)
    if given != 1:
        sources = "one of --all-topic-partitions, --topic and --path-to-json-file"
        raise click.UsageError(f"only {sources} may be given" if given else f"{sources} is needed")
    if (topic is None) is not (partition is None):
        raise click.UsageError("--topic and --partition go together")
    if file is not None:
        return tuple(read_partitions_file(file))
    if topic is not None and partition is not None:
        return (TopicPartition(topic, partition),)
    return None


def _await_metadata(
    controller: ControllerRef, elected: Mapping[TopicPartition, BrokerId], deadline: float
) -> list[TopicPartition]:
    """Wait until the metadata of the controller's broker has the leaders; return those it lacks.

    The controller sends the same UpdateMetadata to all brokers at the same time.
    """
    missing = dict(elected)
    for _ in pauses(deadline) if missing else ():
        request = DescribeMetadataRequest(tuple(sorted({p.topic for p in missing})))
        answer = controller.ask(request, DescribeMetadataResponse, deadline=deadline)
        for row in () if answer is None else answer.partitions:
            partition = TopicPartition(row.topic, row.partition)
            if missing.get(partition) == row.leader:
                del missing[partition]
        if not missing:
            break
    return sorted(missing)


def _print_results(kind: ElectionType, results: Results) -> None:
    elected = [p for p, result in results.items() if result.error_code is Errors.NONE]
    unneeded = [p for p, r in results.items() if r.error_code is Errors.ELECTION_NOT_NEEDED]
    if elected:
        named = listed(elected, _NAMED_PARTITIONS)
        click.echo(f"Successfully completed leader election ({kind.name}) for partitions {named}")
    if unneeded:
        named = listed(unneeded, _NAMED_PARTITIONS)
        click.echo(f"Valid replica already elected for partitions {named}")
    if not results:
        note("no partition needed an election")


def _report_failures(
    kind: ElectionType,
    results: Results,
    unknown: Sequence[TopicPartition],
    timeout_ms: int,
) -> None:
    problems = [
        f"Error completing leader election ({kind.name}) for partition: {partition}:"
        f" {refusal(partition, result)}"
        for partition, result in results.items()
        if result.error_code not in (Errors.NONE, Errors.ELECTION_NOT_NEEDED)
    ]
    if problems:
        could_not = f"{counted(len(problems), 'partition')} could not be elected"
        more = len(problems) - _NAMED_PARTITIONS
        if more > 0:
            problems[_NAMED_PARTITIONS:] = [f"… and {more} more errors (-o json has them all)"]
        problems.append(could_not)
    if unknown:
        problems.append(
            f"{counted(len(unknown), 'new leader')} not known to the brokers after {timeout_ms} ms:"
            f" of {listed(unknown, 5)}"
        )
    if problems:
        raise ElectionError("\n".join(problems))


def _result_json(
    topic_partition: TopicPartition, result: ApiError, leader: BrokerId
) -> dict[str, object]:
    results = {Errors.NONE: "elected", Errors.ELECTION_NOT_NEEDED: "not needed"}
    return {
        **topic_partition._asdict(),
        "result": results.get(result.error_code, "failed"),
        "leader": leader,
        "error": None if result.error_code is Errors.NONE else result.error_code.name,
        "message": result.message,
    }
