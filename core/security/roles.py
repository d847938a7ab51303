"""Who may send which request between processes.

A process has a key. What the key may do depends on its owner: a broker, or an operator, who runs
commands. The decision needs only the header of a request, except for the requests that name the
broker they are of. So the body of a request that is refused is not decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from regent.core.model import BrokerId
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader
from regent.core.protocol.controller import AlterPartitionRequest, ControlledShutdownRequest

_BROKER_PREFIX: Final = "broker-"


class KeyOwner(NamedTuple):
    """The owner of a key; ``broker_id`` is None for an operator."""

    name: str
    broker_id: BrokerId | None = None

    @classmethod
    def named(cls, name: str) -> KeyOwner:
        """Return the owner of a key with this name: ``broker-N`` is a broker's."""
        number = name.removeprefix(_BROKER_PREFIX)
        is_broker = name.startswith(_BROKER_PREFIX) and number.isascii() and number.isdecimal()
        return cls(name, int(number) if is_broker else None)

    @classmethod
    def broker(cls, broker_id: BrokerId) -> KeyOwner:
        """Return a broker."""
        return cls(f"{_BROKER_PREFIX}{broker_id}", broker_id)


class Sender(Enum):
    """Who may send a request."""

    CONTROLLER = "the controller that its header names"
    THE_BROKER = "the broker that it is about"
    BROKER = "brokers"
    MEMBER = "brokers and operators"
    OPERATOR = "operators"


SENDERS: Final[Mapping[ApiKey, Sender]] = {
    # The header's controller must also be ZooKeeper's: see ``replication.control_request_fence``.
    ApiKey.LEADER_AND_ISR: Sender.CONTROLLER,
    ApiKey.STOP_REPLICA: Sender.CONTROLLER,
    ApiKey.UPDATE_METADATA: Sender.CONTROLLER,
    ApiKey.ALTER_PARTITION: Sender.THE_BROKER,
    ApiKey.CONTROLLED_SHUTDOWN: Sender.THE_BROKER,
    # It names the client, who is authorized, and whose quota counts.
    ApiKey.ENVELOPE: Sender.BROKER,
    # Commands send these. A broker has clients who ask for them, so it sends them in an envelope.
    ApiKey.ELECT_LEADERS: Sender.OPERATOR,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Sender.OPERATOR,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Sender.OPERATOR,
    ApiKey.AWAIT_BROKERS: Sender.MEMBER,
    ApiKey.DESCRIBE_METADATA: Sender.MEMBER,
    ApiKey.DESCRIBE_EVENTS: Sender.MEMBER,
    ApiKey.DESCRIBE_CONTROLLER: Sender.MEMBER,
    ApiKey.PLACE_TOPICS: Sender.MEMBER,
    ApiKey.PLACEMENT_STATUS: Sender.MEMBER,
    ApiKey.SHUTDOWN_BROKER: Sender.OPERATOR,
    ApiKey.MOVE_CONTROLLER: Sender.OPERATOR,
    ApiKey.HOLD_DELETED_LOGS: Sender.OPERATOR,
    ApiKey.UNDELETE_TOPIC: Sender.OPERATOR,
    ApiKey.NOTE_OPERATION: Sender.OPERATOR,
}
"""Who may send each request; a test fails for an API without a row."""


def may_send(peer: KeyOwner, api_key: ApiKey, header: ControlHeader | None) -> bool:
    """Whether a request is decoded; ``header`` is that of a control request."""
    match SENDERS[api_key]:
        case Sender.CONTROLLER:
            return header is not None and peer.broker_id == header.controller_id
        case Sender.THE_BROKER | Sender.BROKER:
            return peer.broker_id is not None
        case Sender.OPERATOR:
            return peer.broker_id is None
        case Sender.MEMBER:
            return True


def is_about(peer: KeyOwner, request: object) -> bool:
    """Whether a request that names the broker it is of is the peer's own."""
    if isinstance(request, AlterPartitionRequest | ControlledShutdownRequest):
        return request.broker_id == peer.broker_id
    return True
