"""A peer that speaks CURVE itself, to send what no ZeroMQ sends (https://rfc.zeromq.org/spec/26/)."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from nacl.bindings import (
    crypto_box,
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_keypair,
    crypto_box_open,
)

from regent.config.addresses import host_of, key_of, port_of
from regent.testing.waits import scaled
from regent.transport.control.key_files import KeyPair

PING: Final = b"\4PING\0\0"  # ask for an answer; the time to live is none
_MORE, _COMMAND = 1, 2
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)
_METADATA: Final = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


class CurvePeer:
    """A connection to ``tcp://host:port#key`` that has proved the key of ``keys``."""

    def __init__(self, endpoint: str, keys: KeyPair) -> None:
        address = host_of(endpoint), port_of(endpoint)
        server = bytes.fromhex(key_of(endpoint))
        self.socket = socket.create_connection(address, scaled(10))
        self.socket.sendall(_GREETING)
        self._read(len(_GREETING))
        public, secret = crypto_box_keypair()
        nonce = struct.pack(">Q", 1)
        box = crypto_box(bytes(64), b"CurveZMQHELLO---" + nonce, server, secret)
        self._send_command(b"\5HELLO\1\0" + bytes(72) + public + nonce + box)
        welcome = self._read_frame()
        plain = crypto_box_open(welcome[24:], b"WELCOME-" + welcome[8:24], server, secret)
        of_session, cookie = plain[:32], plain[32:]
        nonce = os.urandom(16)
        own_secret = bytes.fromhex(keys.secret)
        vouch = nonce + crypto_box(public + server, b"VOUCH---" + nonce, of_session, own_secret)
        plain = bytes.fromhex(keys.public) + vouch + _METADATA
        nonce = struct.pack(">Q", 2)
        box = crypto_box(plain, b"CurveZMQINITIATE" + nonce, of_session, secret)
        self._send_command(b"\x08INITIATE" + cookie + nonce + box)
        assert self._read_frame().startswith(b"\5READY")
        self._key = crypto_box_beforenm(of_session, secret)
        self._nonce = 2

    def message(self, *frames: bytes) -> bytes:
        """Return a message as it is sent."""
        *first, last = frames
        return b"".join(self._sealed(_MORE, frame) for frame in first) + self._sealed(0, last)

    def command(self, body: bytes) -> bytes:
        """Return a command as it is sent."""
        return self._sealed(_COMMAND, body)

    def reset(self) -> None:
        """End the connection at once: what was not read is lost."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _sealed(self, flags: int, body: bytes) -> bytes:
        self._nonce += 1
        nonce = struct.pack(">Q", self._nonce)
        box = crypto_box_afternm(bytes([flags]) + body, b"CurveZMQMESSAGEC" + nonce, self._key)
        frame = b"\7MESSAGE" + nonce + box
        return bytes([0, len(frame)]) + frame

    def _send_command(self, body: bytes) -> None:
        long = len(body) > 255
        size = struct.pack(">Q", len(body)) if long else bytes([len(body)])
        self.socket.sendall(bytes([6 if long else 4]) + size + body)

    def _read_frame(self) -> bytes:
        return self._read(self._read(2)[1])

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self.socket.recv(size - len(data))
            if not some:
                raise ConnectionError("it was closed")
            data += some
        return data


def reset_behind_a_ping(endpoint: str, keys: KeyPair) -> None:
    """Send many messages and a PING, which ZeroMQ reads together, and reset the connection."""
    peer = CurvePeer(endpoint, keys)
    peer.socket.sendall(b"".join([peer.message(b"", b"") for _ in range(60)]) + peer.command(PING))
    peer.reset()
