"""The bytes of a request: header and body, each one frame of msgpack.

A message is ``b""``, header and body; a long body is sent in pieces (``sockets.pieces``). The
request header is the array ``[1, api_key, api_version, correlation_id, client_id, controller_id |
nil, controller_epoch | nil, broker_epoch | nil, event_id | nil]``. 1 is the version of the header.
Control requests have the controller id and both epochs; other requests have none of them, or they
are refused. The reply header is ``[1, correlation_id, error_code]``. A reply with a body has error
code 0, because the body has its own codes. The header of a reply without a body has the error code.

Bodies are the dataclasses of ``core.protocol`` and the Kafka messages of its ``messages``; see
``schema``. Brokers of two versions may talk: unknown fields are ignored, and missing ones have
their defaults. Everything that cannot be decoded, or is too large, is a ``BadDataError``. There is
no checksum, because TCP has one, and no pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgpack

from regent.config.collector import collector
from regent.core.errors import BadDataError, Errors
from regent.core.model import MAX_CONTROLLER_EPOCH, BrokerId
from regent.core.protocol import (
    broker,
    control,
    controller,
    envelope,
    placement,
)
from regent.core.protocol.api import ActorRequest, ActorResponse, ApiKey
from regent.core.protocol.control import ControlHeader, ControlRequest, ControlResponse
from regent.core.protocol.messages import partitions
from regent.core.records import RecordBytes
from regent.transport.control.schema import Decoder, decoder

Request: TypeAlias = ControlRequest | ActorRequest
Response: TypeAlias = ControlResponse | ActorResponse
Frames: TypeAlias = tuple[RecordBytes, ...]
T = TypeVar("T")

HEADER_VERSION: Final = 1
API_VERSION: Final = 0
CONTROL_VERSION: Final = f"{HEADER_VERSION}.{API_VERSION}"
"""What a broker registers: those with another one refuse its requests, and it theirs."""
PING: Final = (b"", b"")
"""A message without a header: the server sends the same back at once."""

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_HEADER_BYTES: Final = 4096
MAX_REASON_LETTERS: Final = 500
MAX_STRING_BYTES: Final = 32_767  # as in Kafka's protocol
MAX_ARRAY_LENGTH: Final = 1_048_576
MAX_MAP_LENGTH: Final = 64
# An empty map has one byte on the wire and 64 to 200 bytes in memory. So the number of maps in a
# body is limited by its length. The smallest useful map, the replica of a new partition, is longer.
BYTES_PER_MAP: Final = 12
_FREE_MAPS: Final = 16  # beyond that limit, for short bodies
_LARGE_BODY_BYTES: Final = 64 * 1024  # above, the garbage collector takes longer than the decoding


LARGE_REQUEST_BYTES: Final = 256 * 1024
"""A larger request of a deposed controller is answered without being decoded."""

# The maximum sizes of request bodies.
_SMALL: Final = 4096
_LIST: Final = 3 * 1024 * 1024  # brokers and tools send 10,000 rows at once
# What a Kafka client asks for in one request; there a topic is named once, here in each row.
_TOPICS: Final = 16 * 1024 * 1024
# Controllers split requests at 2 MiB of rows (``core.controller.request_batch``); brokers come on
# top.
_CONTROL: Final = 8 * 1024 * 1024


class _Api(NamedTuple):
    request: type[Request]
    response: type[Response]
    max_bytes: int = _LIST


_APIS: Final[Mapping[ApiKey, _Api]] = {
    ApiKey.LEADER_AND_ISR: _Api(
        control.LeaderAndIsrRequest, control.LeaderAndIsrResponse, _CONTROL
    ),
    ApiKey.STOP_REPLICA: _Api(control.StopReplicaRequest, control.StopReplicaResponse, _CONTROL),
    ApiKey.UPDATE_METADATA: _Api(
        control.UpdateMetadataRequest, control.UpdateMetadataResponse, _CONTROL
    ),
    ApiKey.CONTROLLED_SHUTDOWN: _Api(
        controller.ControlledShutdownRequest, controller.ControlledShutdownResponse, _SMALL
    ),
    ApiKey.ELECT_LEADERS: _Api(
        partitions.ElectLeadersRequest, partitions.ElectLeadersResponse, _TOPICS
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _Api(
        partitions.AlterPartitionReassignmentsRequest,
        partitions.AlterPartitionReassignmentsResponse,
        _TOPICS,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _Api(
        partitions.ListPartitionReassignmentsRequest,
        partitions.ListPartitionReassignmentsResponse,
        _TOPICS,
    ),
    ApiKey.ALTER_PARTITION: _Api(
        controller.AlterPartitionRequest, controller.AlterPartitionResponse
    ),
    ApiKey.ENVELOPE: _Api(envelope.EnvelopeRequest, envelope.EnvelopeResponse, _TOPICS),
    ApiKey.DESCRIBE_METADATA: _Api(broker.DescribeMetadataRequest, broker.DescribeMetadataResponse),
    ApiKey.DESCRIBE_EVENTS: _Api(
        broker.DescribeEventsRequest, broker.DescribeEventsResponse, _SMALL
    ),
    ApiKey.SHUTDOWN_BROKER: _Api(
        broker.ShutdownBrokerRequest, broker.ShutdownBrokerResponse, _SMALL
    ),
    ApiKey.DESCRIBE_CONTROLLER: _Api(
        controller.DescribeControllerRequest, controller.DescribeControllerResponse, _SMALL
    ),
    ApiKey.AWAIT_BROKERS: _Api(
        controller.AwaitBrokersRequest, controller.AwaitBrokersResponse, _SMALL
    ),
    ApiKey.MOVE_CONTROLLER: _Api(
        controller.MoveControllerRequest, controller.MoveControllerResponse, _SMALL
    ),
    ApiKey.HOLD_DELETED_LOGS: _Api(
        broker.HoldDeletedLogsRequest, broker.HoldDeletedLogsResponse, _TOPICS
    ),
    ApiKey.UNDELETE_TOPIC: _Api(
        controller.UndeleteTopicRequest, controller.UndeleteTopicResponse, _TOPICS
    ),
    ApiKey.NOTE_OPERATION: _Api(
        controller.NoteOperationRequest, controller.NoteOperationResponse, _SMALL
    ),
    ApiKey.PLACE_TOPICS: _Api(placement.PlaceTopicsRequest, placement.PlaceTopicsResponse, _TOPICS),
    ApiKey.PLACEMENT_STATUS: _Api(
        placement.PlacementStatusRequest, placement.PlacementStatusResponse, _SMALL
    ),
}
_API_KEYS: Final[Mapping[type, ApiKey]] = {api.request: key for key, api in _APIS.items()}
_REQUEST_DECODERS: Final = {key: decoder(api.request) for key, api in _APIS.items()}
_RESPONSE_DECODERS: Final = {key: decoder(api.response) for key, api in _APIS.items()}
KNOWN_APIS: Final[frozenset[int]] = frozenset(_APIS)
# The requests that only a controller sends; its epoch fences them.
CONTROL_REQUESTS: Final[Mapping[int, type[ControlRequest]]] = {
    ApiKey.LEADER_AND_ISR: control.LeaderAndIsrRequest,
    ApiKey.STOP_REPLICA: control.StopReplicaRequest,
    ApiKey.UPDATE_METADATA: control.UpdateMetadataRequest,
}


_FIRST_OF_CONTROLLER: Final = 5  # of the fields that only control requests have
_OLDEST_FIELDS: Final = 8  # in headers of Regent 0.1; those of its tools are still accepted


class RequestHeader(NamedTuple):
    """The header of a request; the fields are those of the wire."""

    header_version: int
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    controller_id: BrokerId | None = None
    controller_epoch: int | None = None
    broker_epoch: int | None = None
    event_id: int | None = None
    broker_id: BrokerId | None = None

    @property
    def control_header(self) -> ControlHeader | None:
        """The sending controller and its receiver; None when one of them is not named."""
        if self.controller_id is None or self.controller_epoch is None or self.broker_epoch is None:
            return None
        if self.broker_id is None:
            return None
        return ControlHeader(
            self.controller_id,
            self.controller_epoch,
            self.broker_epoch,
            event_id=self.event_id or 0,
            broker_id=self.broker_id,
        )


class ReplyHeader(NamedTuple):
    """The header of a reply; ``reason`` explains an error to people, or is empty."""

    header_version: int
    correlation_id: int
    error_code: Errors
    reason: str = ""


_decode_request_header: Final = decoder(RequestHeader)
_decode_reply_header: Final = decoder(ReplyHeader)


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A request body as frames: it is encoded once for all brokers."""

    api_key: ApiKey
    frames: Frames


def request_class(api_key: ApiKey) -> type[Request]:
    """Return the class of the requests with ``api_key``."""
    return _APIS[api_key].request


def response_class(api_key: ApiKey) -> type[Response]:
    """Return the class of the answers to ``api_key``."""
    return _APIS[api_key].response


def encode_request(request: Request) -> EncodedBody:
    """Return ``request`` as a body that can be sent any number of times; raises BadDataError."""
    api_key = _API_KEYS.get(type(request))
    if api_key is None:
        raise BadDataError(f"{type(request).__name__} is not a request")
    frames = encode_body(request)
    limit = _APIS[api_key].max_bytes
    if len(frames[0]) > limit:
        raise BadDataError(
            f"{type(request).__name__} of {len(frames[0])} bytes exceeds {limit}: split it"
        )
    return EncodedBody(api_key, frames)


def encode_body(value: object) -> Frames:
    """Return a request or response as msgpack; raises BadDataError when that is impossible."""
    try:
        data: bytes = msgpack.packb(value, default=_as_map)
    except Exception as error:
        raise BadDataError(f"{type(value).__name__} cannot be encoded: {error}") from error
    if len(data) > MAX_BODY_BYTES:
        raise BadDataError(
            f"{type(value).__name__} of {len(data)} bytes exceeds {MAX_BODY_BYTES}: split it"
        )
    return (data,)


def max_request_bytes(api_key: ApiKey) -> int:
    """Return the maximum size of a request body."""
    return _APIS[api_key].max_bytes


def check_request_size(api_key: ApiKey, data: RecordBytes) -> None:
    """Raise BadDataError when a body is larger than its kind of request may be."""
    limit = _APIS[api_key].max_bytes
    if len(data) > limit:
        raise BadDataError(f"{_APIS[api_key].request.__name__}: {len(data)} bytes exceed {limit}")


def decode_request_body(api_key: ApiKey, data: RecordBytes) -> Request:
    """Return the request in a body; raises BadDataError."""
    check_request_size(api_key, data)
    return _decode_body(_APIS[api_key].request, _REQUEST_DECODERS[api_key], data)


def decode_response_body(api_key: ApiKey, data: RecordBytes) -> Response:
    """Return the response in a body; raises BadDataError."""
    return _decode_body(_APIS[api_key].response, _RESPONSE_DECODERS[api_key], data)


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the header frame of a request."""
    data: bytes = msgpack.packb(header)
    return data


def decode_request_header(data: RecordBytes) -> RequestHeader:
    """Return the header of a request of any version and api key; raises BadDataError."""
    fields = _unpack_header(data)
    if isinstance(fields, tuple) and _OLDEST_FIELDS <= len(fields) < len(RequestHeader._fields):
        fields = (*fields, *[None] * (len(RequestHeader._fields) - len(fields)))
    header = _decode_request_header(fields)
    control = (header.controller_id, header.controller_epoch, header.broker_epoch)
    is_of_controller = any(field is not None for field in header[_FIRST_OF_CONTROLLER:])
    if is_of_controller and header.api_key in KNOWN_APIS - CONTROL_REQUESTS.keys():
        raise BadDataError("RequestHeader: only a control request names a controller")
    if None in control and control != (None, None, None):
        raise BadDataError("RequestHeader: only some of controller id and epochs are set")
    if header.controller_epoch is not None and header.controller_epoch > MAX_CONTROLLER_EPOCH:
        raise BadDataError("RequestHeader: the controller epoch is above the highest possible")
    return header


def peek_correlation_id(data: RecordBytes) -> int | None:
    """Return the correlation id of an invalid header, if it can be found."""
    try:
        header = _unpack_header(data)
    except BadDataError:
        return None
    if isinstance(header, tuple) and len(header) > 3 and type(header[3]) is int:
        return header[3]
    return None


def encode_reply_header(
    correlation_id: int, error_code: Errors = Errors.NONE, reason: str = ""
) -> bytes:
    """Return the header frame of a reply; without a reason it has three fields, as ever."""
    header = ReplyHeader(HEADER_VERSION, correlation_id, error_code, reason[:MAX_REASON_LETTERS])
    data: bytes = msgpack.packb(header if reason else header[:3])
    return data


def decode_reply_header(data: RecordBytes) -> ReplyHeader:
    """Return the header of a reply; raises BadDataError."""
    fields = _unpack_header(data)
    if isinstance(fields, tuple) and len(fields) == len(ReplyHeader._fields) - 1:
        fields = (*fields, "")
    header = _decode_reply_header(fields)
    if header.header_version != HEADER_VERSION:
        raise BadDataError(f"ReplyHeader: version {header.header_version} is not known")
    return header


def _decode_body(cls: type[T], decode: Decoder[T], data: RecordBytes) -> T:
    if len(data) > MAX_BODY_BYTES:
        raise BadDataError(f"{cls.__name__}: {len(data)} bytes exceed {MAX_BODY_BYTES}")
    try:
        with _collector_paused(len(data)):
            return decode(_unpack(cls.__name__, data))
    except MemoryError:
        raise BadDataError(f"{cls.__name__}: no memory for {len(data)} bytes") from None


def _unpack_header(data: RecordBytes) -> object:
    if len(data) > MAX_HEADER_BYTES:
        raise BadDataError(f"header: {len(data)} bytes exceed {MAX_HEADER_BYTES}")
    return _unpack("header", data)


def _unpack(name: str, data: RecordBytes) -> object:
    """Return ``data`` as maps, tuples and scalars, within limits that grow with its length only."""
    with _one_error(name):
        budget = _FREE_MAPS + len(data) // BYTES_PER_MAP
        return msgpack.unpackb(data, object_pairs_hook=_map_builder(budget), **_UNPACKING)


@contextmanager
def _one_error(name: str) -> Iterator[None]:
    try:
        yield
    except BadDataError as error:
        raise BadDataError(f"{name}: {error}") from None
    except MemoryError:
        raise BadDataError(f"{name}: no memory") from None
    except Exception as error:  # noqa: BLE001 - msgpack's errors have no common base
        reason = str(error) or type(error).__name__
        raise BadDataError(f"{name} is not readable msgpack: {reason}") from None


def _map_builder(budget: int) -> Callable[[list[tuple[Any, Any]]], dict[Any, Any]]:
    def build(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        nonlocal budget
        budget -= 1
        if budget < 0:
            raise BadDataError("too many maps for its length")
        return _map(pairs)

    return build


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise BadDataError("a map has the same key twice")
    return value


def _refuse_extension(code: int, _data: bytes) -> object:
    raise BadDataError(f"extension type {code} is not allowed")


_UNPACKING: Final[Mapping[str, Any]] = {
    "use_list": False,
    "ext_hook": _refuse_extension,
    "max_str_len": MAX_STRING_BYTES,
    "max_array_len": MAX_ARRAY_LENGTH,
    "max_map_len": MAX_MAP_LENGTH,
    "max_bin_len": 0,
    "max_ext_len": 0,
}


def _collector_paused(size: int) -> AbstractContextManager[None]:
    """Pause the garbage collector, which would traverse a growing body repeatedly."""
    return nullcontext() if size < _LARGE_BODY_BYTES else collector.paused()


def _as_map(value: object) -> dict[str, Any]:
    names = getattr(type(value), "__dataclass_fields__", None)
    if names is None:
        raise TypeError(f"a body cannot hold a {type(value).__name__}")
    return {name: getattr(value, name) for name in names}
