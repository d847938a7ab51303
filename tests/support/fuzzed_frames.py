"""Requests between brokers with random changes, and their senders: msgpack by hand.

A genuine request of every kind is made from the types of its class. It is changed as a tree (a
wrong type or an absurd number in any field), as bytes, or as frames, and sent with the key of a
broker or of an operator. Others have no key, and send greetings and frames with changes.
"""

from __future__ import annotations

import dataclasses
import random
import socket
import struct
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple

import msgpack
import zmq

from regent.config.addresses import host_of, port_of
from regent.core.errors import BadDataError
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader, LeaderAndIsrRequest, LeaderAndIsrType
from regent.core.protocol.controller import ControlledShutdownRequest
from regent.core.protocol.message import Uuid
from regent.testing.waits import scaled
from regent.transport.control import codec
from regent.transport.control.sockets import Context, Socket, connect_to, open_socket, pieces

TOPIC: Final = "fuzzed"  # it does not exist, and no change makes the name of an existing one
GREETINGS: Final = tuple(
    b"\xff" + bytes(8) + b"\x7f\3\1" + mechanism.ljust(20, b"\0") + bytes(32)
    for mechanism in (b"CURVE", b"NULL")
)
READY: Final = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
WAIT_S: Final = scaled(10.0)
_HELD_MS: Final = 50

_API_KEY: Final = 1  # its place in a header
_ABSURD: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    -(2**31) - 1,
    -(2**63),
    2**31,
    2**63 - 1,
    2**64 - 1,
    1.5,
    float("nan"),
    "",
    "../../fuzzed",
    "\0",
    "é" * 40_000,
    b"bytes",
    [],
    [None],
    [[]] * 1_000,
    [0] * 20_000,
    {},
    {"a": {"b": {}}},
    {str(number): number for number in range(100)},
    msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(0, 0),
)


# --- genuine requests ---

_BY_NAME: Final = {"controller_epoch": 1, "parts": 1, "replication_factor": 1, "config": []}


def example(hint: Any) -> Any:
    """Return a value of a type as msgpack has it."""
    if isinstance(hint, types.UnionType):
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return [example(typing.get_args(hint)[0])]
    if hint is bool:
        return False
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint)).value
    if hint == Uuid:
        return None
    if hint is int or typing.get_origin(hint) is typing.Annotated:
        return 0
    if hint is str:
        return TOPIC
    hints = typing.get_type_hints(hint, include_extras=True)
    if dataclasses.is_dataclass(hint):
        names = [field.name for field in dataclasses.fields(hint)]
        return {name: _BY_NAME.get(name, example(hints[name])) for name in names}
    return [_BY_NAME.get(name, example(hints[name])) for name in hint._fields]


class Message(NamedTuple):
    """A request: its header and its body, as trees."""

    header: list[Any]
    body: Any

    @property
    def frames(self) -> list[bytes]:
        """The frames of it."""
        return [b"", msgpack.packb(self.header), msgpack.packb(self.body)]


def genuine_messages(controller: ControlHeader) -> list[Message]:
    """One of every kind; control requests also of a deposed controller."""
    found = []
    for key in ApiKey:
        kind = codec.request_class(key)
        body = example(kind)
        if key in codec.CONTROL_REQUESTS:
            stale = controller._replace(controller_epoch=0)
            found += [Message(_header(key, c), body) for c in (controller, stale)]
        elif key is ApiKey.ENVELOPE:
            kinds = [name for name in body if name not in ("requester", "client")]
            for kind in kinds:
                envelope = {
                    **dict.fromkeys(kinds),
                    kind: body[kind],
                    "requester": body["requester"],
                    "client": body["client"],
                }
                found.append(Message(_header(key, None), envelope))
        else:
            found.append(Message(_header(key, None), body))
    return found


def _header(key: ApiKey, controller: ControlHeader | None) -> list[Any]:
    start = codec.RequestHeader(codec.HEADER_VERSION, key, codec.API_VERSION, 1, "fuzz")
    if controller is None:
        return list(start)
    return [*start[:5], *controller[:3], controller.event_id, controller.broker_id]


def would_be_applied(frames: Sequence[bytes], controller: ControlHeader) -> bool:
    """Whether a broker would rightly apply it, and serve other partitions than before."""
    if len(frames) < 3:
        return False
    try:
        header = codec.decode_request_header(frames[1])
        request = codec.decode_request_body(ApiKey(header.api_key), b"".join(frames[2:]))
    except (BadDataError, ValueError, KeyError):
        return False
    control = header.control_header
    if control is None:
        broker = header.api_key == ApiKey.CONTROLLED_SHUTDOWN
        if isinstance(request, ControlledShutdownRequest):
            broker = request.broker_id == controller.controller_id and request.broker_epoch < 0
        return broker or header.api_key == ApiKey.SHUTDOWN_BROKER
    if control.controller_epoch < controller.controller_epoch:
        return False
    if control.controller_epoch > controller.controller_epoch:
        return True
    if isinstance(request, LeaderAndIsrRequest):
        return request.type is LeaderAndIsrType.FULL
    return header.api_key == ApiKey.UPDATE_METADATA


# --- changes of trees ---


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _places(value, (*path, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _places(value, (*path, number))


def _replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = _replaced(tree[path[0]], path[1:], value)
    return copy


def every_field_absurd(message: Message) -> Iterator[list[bytes]]:
    """Yield a request once for every field and absurd value in that field."""
    for path in _places(list(message)):
        for value in _ABSURD if path else ():
            header, body = _replaced(list(message), path, value)
            yield Message(header, body).frames


def _change_tree(frames: list[bytes], message: Message, chance: random.Random) -> list[bytes]:
    changed = list(message)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice([p for p in _places(changed) if p])
        changed = _replaced(changed, path, chance.choice(_ABSURD))
    return Message(*changed).frames


# --- changes of bytes and of frames ---


def _change_bytes(frames: list[bytes], _message: Message, chance: random.Random) -> list[bytes]:
    """Change bytes of header or body."""
    at = chance.choice([1, 2, 2])
    data = bytearray(frames[at])
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = chance.randbytes(1)
            case 1:  # an array, a map, a string or an extension with a giant count
                count = struct.pack(">I", chance.choice([2**32 - 1, 2**20, 300_000, 2**16]))
                data[place : place + 1] = chance.choice([b"\xdd", b"\xdf", b"\xdb", b"\xc9"])
                data[place + 1 : place + 1] = count
            case 2:
                del data[place:]
            case 3:
                nested = chance.choice([b"\x91", b"\x81\x00", b"\x81\xa1a"])
                data[place:place] = nested * chance.choice([3, 600, 1_500, 100_000])
            case _:
                data[place:place] = data[: chance.randrange(64)]
    return [*frames[:at], bytes(data), *frames[at + 1 :]]


def _change_frames(frames: list[bytes], _message: Message, chance: random.Random) -> list[bytes]:
    """Drop, repeat, swap or add frames."""
    changed = list(frames)
    match chance.randrange(5):
        case 0:
            del changed[chance.randrange(3)]
        case 1:
            changed.insert(chance.randrange(4), chance.choice(frames))
        case 2:
            chance.shuffle(changed)
        case 3:
            changed += [chance.randbytes(10)] * chance.choice([1, 5, 40])
        case _:
            changed[0] = chance.randbytes(3)
    return changed


def _change_nothing(frames: list[bytes], _message: Message, _chance: random.Random) -> list[bytes]:
    return frames


_CHANGES: Final[Sequence[Callable[[list[bytes], Message, random.Random], list[bytes]]]] = (
    _change_tree,
    _change_tree,
    _change_bytes,
    _change_bytes,
    _change_frames,
    _change_nothing,
)


def on_the_wire(frames: Sequence[bytes]) -> bytes:
    """The bytes of a message."""
    data = b""
    for number, frame in enumerate(frames, start=1):
        more = number < len(frames)
        data += bytes((more | 2,)) + struct.pack(">Q", len(frame)) + frame
    return data


def _change_stream(data: bytes, chance: random.Random) -> bytes:
    """Change the framing: flags, sizes, commands, the greeting."""
    changed = bytearray(data)
    match chance.randrange(6):
        case 0:
            changed[chance.randrange(64)] = chance.randrange(256)
        case 1:
            at = chance.randrange(64, len(changed))
            changed[at] = chance.randrange(256)
        case 2:
            at = chance.randrange(64, len(changed))
            changed[at:at] = struct.pack(">Q", chance.choice([0, 2**63, 2**64 - 1, 2**24, 300]))
        case 3:
            ping = chance.choice([b"\4\7\4PING\0\0", b"\4\1\4", b"\4\0", b"\4\7\4PONG\0\0", READY])
            changed += ping * chance.choice([1, 3, 500])
        case 4:
            changed += b"\1\0" * chance.choice([1, 15, 17, 3_000])
        case _:
            del changed[chance.randrange(len(changed)) :]
    return bytes(changed)


# --- conversations ---


class Conversation(NamedTuple):
    """What is sent on one connection: messages of a peer with a key, or bytes of one without.

    ``key`` is the number of the key. ``leaves``: the connection is cut after the last one.
    """

    messages: Sequence[list[bytes]]
    stream: bytes
    key: int
    leaves: bool


class Target(NamedTuple):
    """A control port with its key, and contexts with keys: an operator's, then those of brokers."""

    endpoint: str
    contexts: Sequence[Context]


def _conversation(messages: Sequence[list[bytes]], chance: random.Random) -> Conversation:
    stream = b""
    if chance.randrange(6) == 0:
        begin = chance.choice(GREETINGS) + READY
        stream = _change_stream(begin + b"".join(map(on_the_wire, messages)), chance)
    return Conversation(messages, stream, chance.randrange(100), chance.randrange(5) == 0)


def genuine_request() -> list[bytes]:
    """The frames of a request that a broker answers."""
    key = ApiKey.DESCRIBE_METADATA
    return Message(_header(key, None), example(codec.request_class(key))).frames


def answers_an_operator(target: Target) -> bool:
    """Whether the broker answers a genuine request within ``WAIT_S``, whatever it got before."""
    dealer = open_socket(target.contexts[0], zmq.DEALER)
    connect_to(dealer, target.endpoint)
    try:
        dealer.send_multipart(list(pieces(genuine_request())))
        return bool(dealer.poll(round(WAIT_S * 1000)))
    finally:
        dealer.close(linger=0)


def conversations(
    controller: ControlHeader, requests: int, chance: random.Random
) -> Iterator[Conversation]:
    """Yield conversations with this number of requests; first, every field is absurd once."""
    genuine = genuine_messages(controller)
    absurd = [frames for message in genuine for frames in every_field_absurd(message)]
    chance.shuffle(absurd)
    sent = 0
    while sent < requests:
        messages = []
        for _ in range(min(chance.randint(1, 3), requests - sent)):
            if absurd:
                frames = absurd.pop()
            else:
                message = chance.choice(genuine)
                frames = chance.choice(_CHANGES)(message.frames, message, chance)
            if would_be_applied(frames, controller):
                frames = [b"", msgpack.packb(_header(ApiKey.DESCRIBE_CONTROLLER, None)), b"\xc0"]
            messages.append(frames)
        sent += len(messages)
        yield _conversation(messages, chance)


def talk(target: Target, conversations: Sequence[Conversation]) -> Counter[str]:
    """Run all at once; return their outcomes.

    ``held``: not all is answered after a quiet time. ``stranger``: without a key, so not heard.
    ``limited``: of a broker that has caused too much work, and may not connect for some time.
    """
    outcomes: Counter[str] = Counter(requests=sum(len(c.messages) for c in conversations))
    strangers: list[socket.socket] = []
    asked: dict[Socket, int] = {}
    for conversation in conversations:
        if conversation.stream:
            strangers.append(_stranger(target, conversation.stream))
            continue
        number = conversation.key % len(target.contexts)
        if number and outcomes["limited"]:
            outcomes["limited"] += 1
            continue
        dealer = open_socket(target.contexts[number], zmq.DEALER)
        connect_to(dealer, target.endpoint)
        if not dealer.poll(round(WAIT_S * 1000), zmq.POLLOUT):
            assert number, "an operator is let in"
            outcomes["limited"] += 1
            dealer.close(linger=0)
            continue
        for frames in conversation.messages:
            with suppress(zmq.Again):  # it is cut off meanwhile
                dealer.send_multipart(list(pieces(frames)), zmq.DONTWAIT)
        if conversation.leaves:
            outcomes["left"] += 1
            dealer.close(linger=0)
        else:
            asked[dealer] = len(conversation.messages)
    _await_answers(asked, outcomes)
    outcomes["stranger"] += len(strangers)
    for stranger in strangers:
        stranger.close()
    return outcomes


def _stranger(target: Target, stream: bytes) -> socket.socket:
    address = host_of(target.endpoint), port_of(target.endpoint)
    stranger = socket.create_connection(address, WAIT_S)
    with suppress(ConnectionError):
        stranger.sendall(stream)
    return stranger


def _await_answers(asked: dict[Socket, int], outcomes: Counter[str]) -> None:
    """Receive until each has all its answers, or until a quiet time."""
    poller = zmq.Poller()
    for dealer in asked:
        poller.register(dealer, zmq.POLLIN)
    waiting = set(asked)
    while waiting and (ready := poller.poll(_HELD_MS)):
        for dealer, _ in ready:
            dealer.recv_multipart()
            asked[dealer] -= 1
            if not asked[dealer]:
                waiting.discard(dealer)
                poller.unregister(dealer)
                outcomes["answered"] += 1
    outcomes["held"] += len(waiting)
    for dealer in asked:
        dealer.close(linger=0)
