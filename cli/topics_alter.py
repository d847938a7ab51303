"""``topics alter``: adds partitions."""

from __future__ import annotations

import time

import click

from regent.cli.output import Output, examples, note, output_option, print_json
from regent.cli.placement import service_options
from regent.cli.remote_actors import controller_of
from regent.cli.topic_options import named, topic_argument
from regent.cli.waiting import Waiting, timeout_option
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.topics import TopicsClient, growth, raise_if_refused
from regent.client.wording import counted
from regent.core.ports import TopicAssignment
from regent.core.protocol.topics import PlacementOptions


@click.command(epilog=examples("topics alter payments --partitions 24"))
@topic_argument
@click.option("--partitions", type=int, required=True, help="The new total number of partitions.")
@service_options
@timeout_option("Time to wait until every partition has a leader.")
@output_option
@pass_cluster
def alter(
    cluster: Cluster,
    /,
    name: str | None,
    partitions: int,
    placement_service: bool,
    placement_timeout_ms: int,
    timeout_ms: int,
    output: str,
) -> None:
    """Add partitions to a topic; their number cannot decrease."""
    if name is None:
        raise click.UsageError("which topic? Give a name")
    request = growth(name, partitions, PlacementOptions(use_service=placement_service))
    with cluster.admin() as admin, controller_of(admin) as controller, Waiting() as waiting:
        current = admin.topics.read_topics(named(name)).get(name)
        old = len(current.partitions) if isinstance(current, TopicAssignment) else 0
        TopicsClient(controller, deadline=_after(timeout_ms)).await_placement_service(
            request,
            lambda starting: waiting.say(f"placement: {starting}"),
            deadline=_after(placement_timeout_ms),
        )
        response = TopicsClient(controller, deadline=_after(timeout_ms)).grow(request)
    if response.placement_note:
        note(response.placement_note)
    raise_if_refused(response.outcomes)
    if output == Output.JSON:
        added = list(range(old, partitions))
        print_json({"topic": name, "partitions": partitions, "added_partitions": added})
    else:
        click.echo(f"Topic {name} has {counted(partitions, 'partition')} now ({old} before).")


def _after(timeout_ms: int) -> float:
    return time.monotonic() + timeout_ms / 1000
