"""A peer that sends any frames at all, and what a server answers when all is well."""

from __future__ import annotations

import socket

import msgpack
import zmq

from regent.config.addresses import host_of, port_of
from regent.core.errors import Errors
from regent.core.protocol.api import ApiKey
from regent.core.protocol.placement import PlacementStatusRequest, PlacementStatusResponse
from regent.testing.waits import scaled
from regent.transport.control.codec import encode_body
from regent.transport.control.server import IncomingRequest
from regent.transport.control.sockets import Socket, connect_to, pieces

READY = PlacementStatusResponse(Errors.NONE, "ready")
STATUS = PlacementStatusRequest()


def answer_ready(request: IncomingRequest) -> None:
    request.reply(READY)


class RawPeer:
    """A DEALER that sends any frames at all."""

    def __init__(self, socket: Socket, endpoint: str) -> None:
        self.socket = socket
        connect_to(socket, endpoint)

    def send(self, *frames: bytes) -> None:
        assert self.socket.poll(round(scaled(5_000)), zmq.POLLOUT)
        self.socket.send_multipart(list(pieces(frames)))

    def send_header(self, header: object, body: bytes = b"\x80") -> None:
        self.send(b"", msgpack.packb(header), body)

    def receive(self) -> list[object]:
        """The header of the next answer, which has no body."""
        assert self.socket.poll(round(scaled(5_000)), zmq.POLLIN)
        empty, header = self.socket.recv_multipart()
        assert empty == b""
        decoded: list[object] = msgpack.unpackb(header)
        return decoded

    def receive_own_answer(self) -> list[bytes]:
        """What comes back for a well-formed request: proof that the server still serves."""
        self.send_header([1, ApiKey.PLACEMENT_STATUS, 0, 999, "raw", None, None, None])
        assert self.socket.poll(round(scaled(5_000)), zmq.POLLIN)
        return self.socket.recv_multipart()[1:]


TIMEOUT_MS = round(scaled(20_000))
"""A limit for requests that are answered."""

ANSWER_999 = [msgpack.packb([1, 999, 0]), *encode_body(READY)]


def tcp_connection(endpoint: str) -> socket.socket:
    """A connection that has said nothing."""
    return socket.create_connection((host_of(endpoint), port_of(endpoint)), timeout=scaled(5))
