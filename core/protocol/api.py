"""The API keys of all requests between processes, and the unions of those that actors answer."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from regent.core.protocol.broker import (
    DescribeEventsRequest,
    DescribeEventsResponse,
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    HoldDeletedLogsRequest,
    HoldDeletedLogsResponse,
    ShutdownBrokerRequest,
    ShutdownBrokerResponse,
)
from regent.core.protocol.controller import ControllerRequest, ControllerResponse
from regent.core.protocol.envelope import EnvelopeRequest, EnvelopeResponse
from regent.core.protocol.placement import (
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)


class ApiKey(IntEnum):
    """Kafka's API keys; requests that Kafka does not have begin at 1000."""

    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    ELECT_LEADERS = 43
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    ALTER_PARTITION = 56
    ENVELOPE = 58
    DESCRIBE_METADATA = 1000
    DESCRIBE_EVENTS = 1001
    SHUTDOWN_BROKER = 1002
    DESCRIBE_CONTROLLER = 1003
    AWAIT_BROKERS = 1004
    MOVE_CONTROLLER = 1005
    HOLD_DELETED_LOGS = 1006
    UNDELETE_TOPIC = 1007
    NOTE_OPERATION = 1008
    PLACE_TOPICS = 1010
    PLACEMENT_STATUS = 1011


ActorRequest: TypeAlias = (
    ControllerRequest
    | EnvelopeRequest
    | DescribeMetadataRequest
    | DescribeEventsRequest
    | ShutdownBrokerRequest
    | HoldDeletedLogsRequest
    | PlaceTopicsRequest
    | PlacementStatusRequest
)
ActorResponse: TypeAlias = (
    ControllerResponse
    | EnvelopeResponse
    | DescribeMetadataResponse
    | DescribeEventsResponse
    | ShutdownBrokerResponse
    | HoldDeletedLogsResponse
    | PlaceTopicsResponse
    | PlacementStatusResponse
)
