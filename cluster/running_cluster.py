"""What a supervisor asks a cluster that runs: whom a broker knows, and who is the controller."""

from __future__ import annotations

from typing import Final

from regent.core.errors import BadDataError, SessionExpiredError
from regent.core.model import BrokerId
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.transport.control.client import RequestError
from regent.transport.control.remote_ref import actor_at, ask
from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.znodes import ControllerZNode

_CONTROLLER_READ_TIMEOUT_S: Final = 2.0
_METADATA_ASK_S: Final = 1.0


def known_brokers(control_peer: str) -> frozenset[BrokerId]:
    """Return the brokers in the metadata of one broker; empty if it does not answer in time."""
    request = DescribeMetadataRequest(topics=())
    try:
        with actor_at(control_peer, client_id="regent-cluster") as broker:
            answer = ask(broker, request, DescribeMetadataResponse, timeout_s=_METADATA_ASK_S)
    except RequestError:
        return frozenset()
    return frozenset(broker.broker_id for broker in answer.brokers)


def read_controller_id(hosts: str) -> BrokerId | None:
    """Return the active controller's id; None: no controller, or no answer from ZooKeeper."""
    timeout_ms = int(_CONTROLLER_READ_TIMEOUT_S * 1000)
    client = ZooKeeperClient(hosts, timeout_ms, on_watch=lambda _: None)
    try:
        client.start(_CONTROLLER_READ_TIMEOUT_S)
        node = client.get(ControllerZNode.PATH)
        return None if node is None else ControllerZNode.decode(node.data)
    except (ConnectionLossError, SessionExpiredError, BadDataError):
        return None
    finally:
        client.close(_CONTROLLER_READ_TIMEOUT_S)
