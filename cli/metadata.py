"""``metadata``: the metadata cache of a broker."""

from __future__ import annotations

from operator import itemgetter

import click

from regent.cli.brokers import broker_json
from regent.cli.output import Output, examples, output_option, print_json, print_table
from regent.cli.watching import complete_brokers
from regent.client.cluster_connection import Cluster, ClusterNotFoundError, pass_cluster
from regent.client.wording import listed
from regent.core.errors import BrokerNotFoundError, Errors, RegentError
from regent.core.model import BrokerId, BrokerInfo, BrokerRegistration, EndPoint
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from regent.core.protocol.control import UpdateMetadataBroker
from regent.zk.stores.admin_store import control_endpoint

_ASK_TIMEOUT_S = 10.0
_COLUMNS = ("topic", "partition", "leader", "leader_epoch", "isr", "replicas", "offline_replicas")


class MetadataError(RegentError):
    """A broker did not return its metadata."""


@click.command(epilog=examples("metadata --broker 1"))
@click.option(
    "--broker",
    "broker_id",
    shell_complete=complete_brokers,
    type=click.IntRange(min=0),
    required=True,
    metavar="ID",
    help="The broker to ask.",
)
@output_option
@pass_cluster
def metadata(cluster: Cluster, /, broker_id: BrokerId, output: str) -> None:
    """Show the metadata cache of a broker: the controller, brokers and partitions.

    A broker without registration is asked too, if it belongs to the local cluster.
    """
    from regent.cli.remote_actors import actor_at
    from regent.transport.control.client import RequestError
    from regent.transport.control.remote_ref import ask

    try:
        with actor_at(_endpoint(cluster, broker_id)) as actor:
            request = DescribeMetadataRequest()
            answer = ask(actor, request, DescribeMetadataResponse, timeout_s=_ASK_TIMEOUT_S)
    except RequestError as error:
        raise MetadataError(f"broker {broker_id} does not answer: {error}") from None
    if answer.error_code is not Errors.NONE or answer.broker_id != broker_id:
        found = f"broker {answer.broker_id} answered"
        reason = answer.error_code.name if answer.error_code else found
        raise MetadataError(f"no metadata of broker {broker_id}: {reason}")
    rows = sorted(answer.partitions, key=lambda row: (row.topic, row.partition))
    partitions = [_partition_json(row) for row in rows]
    if output == Output.JSON:
        print_json(
            {
                "controller_id": answer.controller_id,
                "controller_epoch": answer.controller_epoch,
                "brokers": [
                    broker_json(_registration(broker), answer.controller_id)
                    for broker in answer.brokers
                ],
                "partitions": partitions,
            }
        )
        return
    click.echo(
        f"Broker {broker_id} ({answer.broker_state}) knows controller {answer.controller_id}"
        f" (epoch {answer.controller_epoch}),"
        f" brokers {listed([b.broker_id for b in answer.brokers]) or 'none'}"
    )
    columns = [name.replace("_", " ") for name in _COLUMNS]
    print_table(columns, [itemgetter(*_COLUMNS)(row) for row in partitions])


def _endpoint(cluster: Cluster, broker_id: BrokerId) -> str:
    """Return where the broker answers, from the registration, or else from ``cluster.json``."""
    try:
        with cluster.admin() as admin:
            return control_endpoint(broker_id, admin.read_broker(broker_id))
    except (BrokerNotFoundError, ClusterNotFoundError):
        file = cluster.file
        if file is None or broker_id not in file.brokers:
            raise
        return file.brokers[broker_id].control_peer


def _registration(broker: UpdateMetadataBroker) -> BrokerRegistration:
    """Convert a broker of a metadata cache to its registration."""
    info = BrokerInfo(
        broker.broker_id,
        tuple(EndPoint(*endpoint) for endpoint in broker.endpoints),
        broker.rack,
        broker.control_endpoint,
        broker.replication_endpoint,
        node_host=broker.node_host,
    )
    return BrokerRegistration(info, broker.broker_epoch)


def _partition_json(row: MetadataPartition) -> dict[str, object]:
    return {
        "topic": row.topic,
        "topic_id": row.topic_id,
        "partition": row.partition,
        "leader": row.leader,
        "leader_epoch": row.leader_epoch,
        "controller_epoch": row.controller_epoch,
        "isr": row.isr,
        "replicas": row.replicas,
        "offline_replicas": row.offline_replicas,
        "partition_epoch": row.partition_epoch,
    }
