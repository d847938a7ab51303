"""Brokers without logs: they register, and answer every control request at once.

All stubs are in one process of their own. A stub answers as a healthy broker does, and notes when
each request came. What a request says is decoded once for each distinct body, so the second
failover costs this process next to nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, TypeAlias

import zmq

from bench.told import Arrival, ReceivedBody, Told
from regent.core.errors import Errors
from regent.core.model import BrokerId, BrokerInfo, EndPoint
from regent.core.protocol.api import ApiKey
from regent.transport.control.codec import PING, decode_request_header, encode_reply_header
from regent.transport.control.key_files import new_key_pair
from regent.transport.control.sockets import new_context, pieces
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.controller_store import ZkControllerStore

SESSION_TIMEOUT_MS: Final = 30_000
_START_TIMEOUT_S: Final = 30.0
_HOST: Final = "127.0.0.1"
_KEYS: Final = new_key_pair()  # of all stubs of a process


Look: TypeAlias = Callable[[Iterable[Arrival]], Told]
"""Finds in what a stub received when it was told of something; it can be pickled."""


class Quiet(NamedTuple):
    """How many requests came so far, and how long ago the last one did."""

    requests: int
    seconds: float


class StubBroker:
    """One stub: a socket, a session, and what it was told."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.arrivals: list[Arrival] = []
        self.socket = context.socket(zmq.ROUTER)
        self.socket.curve_server = True  # it serves every key
        self.port: int = self.socket.bind_to_random_port(f"tcp://{_HOST}")
        self._session: ZooKeeperClient | None = None

    def register(self, zookeeper: str) -> None:
        """Open a session and register in it."""
        endpoint = f"tcp://{_HOST}:{self.port}"
        info = BrokerInfo(
            self.broker_id,
            (EndPoint("PLAINTEXT", _HOST, self.port),),
            control_endpoint=endpoint,
            replication_endpoint=endpoint,
            timestamp_ms=time.time_ns() // 1_000_000,
            control_key=_KEYS.public,
        )
        self._session = ZooKeeperClient(zookeeper, SESSION_TIMEOUT_MS, on_watch=lambda _: None)
        self._session.start(_START_TIMEOUT_S)
        ZkControllerStore(self._session).register_broker(info)

    def crash(self) -> None:
        """End the session, as a guardian does after a crash; answer no more."""
        if self._session is not None:
            self._session.close()
        self.socket.close(linger=0)

    def answer(self, bodies: dict[bytes, ReceivedBody]) -> None:
        """Answer one request, and note it."""
        sender, *frames = self.socket.recv_multipart()
        if tuple(frames) == PING:  # it was silent for long, because all stubs share a thread
            self.socket.send_multipart([sender, *PING])
            return
        empty, header_bytes, *body_pieces = frames
        body_bytes = b"".join(body_pieces)
        now = time.monotonic()
        header = decode_request_header(header_bytes)
        control = header.control_header
        if control is None:
            refusal = encode_reply_header(header.correlation_id, Errors.BROKER_NOT_AVAILABLE)
            self.socket.send_multipart([sender, empty, refusal])
            return
        body = bodies.get(body_bytes)
        if body is None:
            body = bodies[body_bytes] = ReceivedBody(ApiKey(header.api_key), body_bytes)
        reply_header = encode_reply_header(header.correlation_id)
        self.socket.send_multipart([sender, empty, reply_header, *pieces([body.answer])])
        self.arrivals.append(Arrival(now, control.controller_epoch, body))


class _Stubs:
    """The stubs of a process, and the commands that it takes."""

    def __init__(
        self, zookeeper: str, broker_ids: Sequence[BrokerId], commands: Connection
    ) -> None:
        self._zookeeper = zookeeper
        self._commands = commands
        self._context = new_context(_KEYS)
        self._stubs = {b: StubBroker(self._context, b) for b in broker_ids}
        self._bodies: dict[bytes, ReceivedBody] = {}
        self._poller = zmq.Poller()
        for stub in self._stubs.values():
            self._poller.register(stub.socket, zmq.POLLIN)
        self._poller.register(commands.fileno(), zmq.POLLIN)

    def run(self) -> None:
        """Serve until the other end of the pipe is closed."""
        for stub in self._stubs.values():
            stub.register(self._zookeeper)
        self._commands.send(None)
        while True:
            ready = dict(self._poller.poll())
            for stub in list(self._stubs.values()):
                if stub.socket in ready:
                    stub.answer(self._bodies)
            if self._commands.fileno() in ready:
                try:
                    name, *arguments = self._commands.recv()
                except EOFError:
                    return
                self._commands.send(getattr(self, name)(*arguments))

    def quiet(self) -> Quiet:
        """Return how long nothing came."""
        arrivals = [stub.arrivals for stub in self._stubs.values() if stub.arrivals]
        last = max((each[-1].at for each in arrivals), default=time.monotonic())
        return Quiet(sum(map(len, arrivals)), time.monotonic() - last)

    def forget(self) -> None:
        """Begin to note requests anew."""
        for stub in self._stubs.values():
            stub.arrivals.clear()

    def crash(self, broker_id: BrokerId) -> float:
        """Let a stub crash; return when."""
        stub = self._stubs.pop(broker_id)
        self._poller.unregister(stub.socket)
        crashed = time.monotonic()
        stub.crash()
        return crashed

    def told(self, looks: Mapping[BrokerId, Look]) -> dict[BrokerId, Told]:
        """Return what is found in the requests that each stub got."""
        return {b: looks[b](stub.arrivals) for b, stub in self._stubs.items()}


def _serve(zookeeper: str, broker_ids: Sequence[BrokerId], commands: Connection) -> None:
    os.setsid()  # Linux shares processor time by session
    _Stubs(zookeeper, broker_ids, commands).run()


class StubBrokers:
    """The process of some stubs, from the side of the benchmark."""

    def __init__(self, zookeeper: str, broker_ids: Sequence[BrokerId]) -> None:
        self._commands, theirs = multiprocessing.Pipe()
        spawning = multiprocessing.get_context("spawn")
        self._process = spawning.Process(
            target=_serve, args=(zookeeper, broker_ids, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._commands.recv()

    def quiet(self) -> Quiet:
        """Return how many requests came, and how long ago the last one did."""
        quiet: Quiet = self._ask("quiet")
        return quiet

    def forget(self) -> None:
        """Begin to note requests anew."""
        self._ask("forget")

    def crash(self, broker_id: BrokerId) -> float:
        """Let a stub crash; return the monotonic time."""
        crashed: float = self._ask("crash", broker_id)
        return crashed

    def told(self, looks: Mapping[BrokerId, Look]) -> dict[BrokerId, Told]:
        """Return what is found in the requests of each stub that did not crash."""
        told: dict[BrokerId, Told] = self._ask("told", looks)
        return told

    def close(self) -> None:
        """End the process; ZooKeeper ends the sessions."""
        self._process.kill()
        self._process.join()
        self._commands.close()

    def _ask(self, *command: Any) -> Any:
        self._commands.send(command)
        return self._commands.recv()
