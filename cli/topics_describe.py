"""``topics describe``: partitions, in the form of ``kafka-topics.sh``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

import click

from regent.cli.output import Output, examples, note, output_option, print_json, quoted
from regent.cli.topic_options import TopicError, named, topic_argument
from regent.cli.watching import watch_option, watched
from regent.client.cluster_connection import Cluster, as_named, bootstrap_option, pass_cluster
from regent.client.partitions import DescribedPartition, Topics, read_partitions
from regent.core.admin.config_problems import unusable_in_topic
from regent.core.errors import BadDataError
from regent.core.model import BrokerId, BrokerRegistration


@click.command(
    epilog=examples(
        "topics describe payments",
        "topics describe --under-replicated-partitions",
        "topics describe payments -o json",
    )
)
@topic_argument
@click.option(
    "--under-replicated-partitions",
    is_flag=True,
    help="Only partitions with replicas that are out of sync.",
)
@click.option(
    "--unavailable-partitions", is_flag=True, help="Only partitions without a live leader."
)
@watch_option
@output_option
@bootstrap_option
@pass_cluster
def describe(
    cluster: Cluster,
    /,
    name: str | None,
    under_replicated_partitions: bool,
    unavailable_partitions: bool,
    output: str,
    watch_s: float | None,
) -> None:
    """Show the partitions of one topic or of all: leader, replicas, ISR."""
    cluster = as_named(cluster, with_settings=True)
    only = (under_replicated_partitions, unavailable_partitions)
    watched(lambda: _show(cluster, name, output, only), watch_s)


def _show(cluster: Cluster, name: str | None, output: str, only: tuple[bool, bool]) -> None:
    under_replicated_partitions, unavailable_partitions = only
    is_filtered = under_replicated_partitions or unavailable_partitions
    with cluster.admin() as admin:
        live = admin.read_brokers()
        names = admin.topics.read_topic_names() if name is None else named(name)
        found = read_partitions(admin, names)
        configs = {} if is_filtered else admin.configs.read_topic_configs(found.assignments)
        deleted = admin.topics.read_topics_being_deleted()
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
        print_json([_json(partition, live) for partition in shown])
    else:
        _print_partitions(shown, found, configs, deleted, with_headers=not is_filtered)
    for partition in shown:
        waits = partition.waiting_reason(live)
        if waits:
            note(f"regent: {partition.topic_partition} {waits}")
    for problem in found.unreadable:
        note(f"regent: {problem}")


def _json(
    partition: DescribedPartition, brokers: Mapping[BrokerId, BrokerRegistration | BadDataError]
) -> dict[str, object]:
    """Return a partition; ``waiting`` has the broker it waits for and the reason, if any."""
    waits = partition.waiting_reason(brokers)
    return {**partition.as_json(), **({"waiting": waits} if waits else {})}


def _print_partitions(
    partitions: Sequence[DescribedPartition],
    found: Topics,
    configs: Mapping[str, Mapping[str, str] | BadDataError],
    deleted: Collection[str],
    *,
    with_headers: bool,
) -> None:
    """Print in the form of ``kafka-topics.sh --describe``."""
    for topic, of_topic in groupby(partitions, key=lambda p: p.topic_partition.topic):
        rows = list(of_topic)
        if with_headers:
            topic_id = found.assignments[topic].topic_id
            config = configs.get(topic, {})
            overrides = {} if isinstance(config, BadDataError) else _in_force(config)
            fields = [
                f"Topic: {quoted(topic)}",
                *([f"TopicId: {topic_id}"] if topic_id else []),
                f"PartitionCount: {len(rows)}",
                f"ReplicationFactor: {len(rows[0].assignment.origin_replicas)}",
                f"Configs: {','.join(f'{key}={value}' for key, value in overrides.items())}",
                *(["MarkedForDeletion: true"] if topic in deleted else []),
            ]
            click.echo("\t".join(fields))
        click.echo("\n".join(map(_partition_line, rows)))


def _in_force(config: Mapping[str, str]) -> Mapping[str, str]:
    unusable = unusable_in_topic(config)
    return {name: value for name, value in config.items() if name not in unusable}


def _partition_line(partition: DescribedPartition) -> str:
    topic, number = partition.topic_partition
    assignment = partition.assignment
    fields = [
        "",
        f"Topic: {quoted(topic)}",
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
