"""``topics alter``: more partitions."""

from __future__ import annotations

import click

from regent.cli.find_cluster import Cluster, pass_cluster
from regent.cli.output import Output, counted, examples, output_option, print_json
from regent.cli.placement import PlacementOptions, place_topics, placement_request, service_options
from regent.cli.topic_options import TopicError, named, read_live_brokers, topic_argument
from regent.cli.waiting import timeout_option
from regent.core.admin.topic_validation import growth_problem, unknown_topic
from regent.core.errors import BadDataError, Errors
from regent.core.model import ReplicaAssignment
from regent.core.protocol.placement import PlacementSpec
from regent.zk.stores.admin_store import ZkAdminStore


@click.command(epilog=examples("topics alter payments --partitions 24"))
@topic_argument
@click.option("--partitions", type=int, required=True, help="How many there shall be in all.")
@service_options
@timeout_option("How long to wait until every partition has a leader.")
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
    """Give a topic more partitions; it cannot have fewer."""
    if name is None:
        raise click.UsageError("which topic? Give a name")
    from regent.cli.await_leaders import await_leaders

    with cluster.admin() as admin:
        old, replication_factor = _growing(admin, name, partitions)
        spec = PlacementSpec(name, partitions - old, replication_factor, start_partition=old)
        options = PlacementOptions(use_service=placement_service, timeout_ms=placement_timeout_ms)
        request = placement_request(admin, [spec], read_live_brokers(admin), options)
        placed = place_topics(cluster, request, options)
        added = {p: ReplicaAssignment(replicas) for p, replicas in placed[name].items()}
        outcome = admin.topics.add_partitions({name: added})[name]
        if outcome.error_code is not Errors.NONE:
            raise TopicError(outcome.message)
        await_leaders(admin, {name: partitions}, timeout_ms=timeout_ms)
    if output == Output.JSON:
        print_json({"topic": name, "partitions": partitions, "added_partitions": sorted(added)})
    else:
        click.echo(f"Topic {name} has {counted(partitions, 'partition')} now ({old} before).")


def _growing(admin: ZkAdminStore, topic: str, partitions: int) -> tuple[int, int]:
    """Return partition count and replication factor of a topic that may grow to ``partitions``."""
    current = admin.topics.read_topics(named(topic)).get(topic)
    if current is None:
        raise TopicError(unknown_topic(topic).message)
    if isinstance(current, BadDataError):
        raise current
    is_being_deleted = topic in admin.topics.read_topics_being_deleted()
    problem = growth_problem(topic, current, is_being_deleted=is_being_deleted)
    if problem is not None:
        raise TopicError(problem.message)
    old = len(current.partitions)
    if partitions <= old:
        relation = "already has" if partitions == old else "cannot shrink: it has"
        raise TopicError(f"topic {topic} {relation} {counted(old, 'partition')}")
    return old, len(current.partitions[0].replicas)
