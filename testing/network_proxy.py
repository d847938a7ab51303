"""``python -m regent.testing.network_proxy N PIPE``: the network between N brokers and ZooKeeper.

It forwards connections to the control port and the replication port of each broker, and to
ZooKeeper. Between two members that are cut off from each other it forwards no byte, as if packets
were lost: connections stay open and continue after the link is restored.

The first line of standard output has the ports, see ``NetworkPorts``. Then each line of standard
input is a JSON command. An empty line is the answer when it is in effect:

* ``["zookeeper", HOST, PORT]``: where ZooKeeper listens
* ``["cut", A, B]``, ``["restore", A, B]``: a link; members are broker ids and ``"zookeeper"``

The process ends when the pipe with the file descriptor ``PIPE`` ends, as the process of the tests
does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from regent.cluster.child_process import when_parent_ends

HOST: Final = "127.0.0.1"
ZOOKEEPER: Final = "zookeeper"
_CHUNK_BYTES: Final = 262_144
_PROC: Final = Path("/proc")

Member: TypeAlias = int | str
Address: TypeAlias = tuple[str, int]


class ProxiedPorts(NamedTuple):
    """Settings of a broker: the ports it listens on, and those that others connect to."""

    control_port: int
    replication_port: int
    advertised_control_port: int
    advertised_replication_port: int


class NetworkPorts(NamedTuple):
    """The port for ZooKeeper's clients, and the ports of each broker."""

    zookeeper: int
    brokers: list[ProxiedPorts]


class NetworkProxy:
    """Forwards connections while the link between their members is open."""

    def __init__(self) -> None:
        self._links: defaultdict[frozenset[Member], asyncio.Event] = defaultdict(_open_link)
        self._targets: dict[int, tuple[Member, Address]] = {}  # by the port of the proxy's listener
        self._zookeeper_port = 0
        self._processes = BrokerProcesses()
        self._reserved: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, broker_count: int) -> NetworkPorts:
        """Open the listeners and reserve the brokers' own ports."""
        zookeeper = self._zookeeper_port = self._listen(ZOOKEEPER, (HOST, 0))
        brokers = []
        for broker_id in range(broker_count):
            own = self._reserve(), self._reserve()
            brokers.append(
                ProxiedPorts(*own, *(self._listen(broker_id, (HOST, port)) for port in own))
            )
        return NetworkPorts(zookeeper, brokers)

    def handle(self, command: list[Member]) -> None:
        """Carry out a command."""
        match command:
            case ["zookeeper", str(host), int(port)]:
                self._targets[self._zookeeper_port] = ZOOKEEPER, (host, port)
            case ["cut", one, other]:
                self._links[frozenset((one, other))].clear()
            case ["restore", one, other]:
                self._links[frozenset((one, other))].set()
            case _:
                raise ValueError(command)

    def _reserve(self) -> int:
        """Reserve a port for a broker.

        Two sockets with SO_REUSEADDR may be bound to one port while only one of them listens, so a
        broker can listen there, and the kernel gives the port to no other process.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        self._reserved.append(reserved)
        port: int = reserved.getsockname()[1]
        return port

    def _listen(self, target: Member, address: Address) -> int:
        listener = socket.create_server((HOST, 0))
        listener.setblocking(False)
        port: int = listener.getsockname()[1]
        self._targets[port] = target, address
        self._spawn(self._accept(listener, port))
        return port

    async def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            client, source = await asyncio.get_running_loop().sock_accept(listener)
            client.setblocking(False)
            member = self._processes.owner(source[1], port)
            target, _ = self._targets[port]
            link = _open_link() if member is None else self._links[frozenset((member, target))]
            self._spawn(self._connect(client, port, link))

    async def _connect(self, client: socket.socket, port: int, link: asyncio.Event) -> None:
        with client, socket.socket() as server:
            server.setblocking(False)
            await link.wait()
            try:
                await asyncio.get_running_loop().sock_connect(server, self._targets[port][1])
            except OSError:
                return
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.gather(_forward(client, server, link), _forward(server, client, link))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class BrokerProcesses:
    """Finds the broker that opened a connection, by its process."""

    def __init__(self) -> None:
        self._brokers: dict[int, int] = {}  # broker ids by process id; also those that have ended

    def owner(self, source_port: int, target_port: int) -> int | None:
        """Return the broker at the other end of a connection; None: another program."""
        inode = _inode(source_port, target_port)
        if inode is None:
            return None
        link = f"socket:[{inode}]"
        owner = self._owner(link, list(self._brokers))
        return self._owner(link, self._new_processes()) if owner is None else owner

    def _owner(self, link: str, processes: list[int]) -> int | None:
        return next((self._brokers[pid] for pid in processes if _has_open(pid, link)), None)

    def _new_processes(self) -> list[int]:
        """Find brokers and their guardians among the processes not known yet."""
        found = [int(path.name) for path in _PROC.iterdir() if path.name.isdecimal()]
        new = [pid for pid in found if pid not in self._brokers]
        guardians: dict[int, int] = {}
        for pid in new:
            with suppress(OSError, ValueError, IndexError):
                arguments = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
                if b"broker" in arguments:
                    self._brokers[pid] = int(arguments[arguments.index(b"--id") + 1])
                elif b"guardian" in arguments:
                    guardians[pid] = int(arguments[arguments.index(b"--pid") + 1])
        for pid, guarded in guardians.items():
            if guarded in self._brokers:
                self._brokers[pid] = self._brokers[guarded]
        return [pid for pid in new if pid in self._brokers]


async def _forward(source: socket.socket, sink: socket.socket, link: asyncio.Event) -> None:
    """Forward bytes, and the end of the stream, while the link is open."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, _CHUNK_BYTES):
            rest = memoryview(data)
            while rest:
                await link.wait()  # before each call: no byte is sent after a cut
                try:
                    rest = rest[sink.send(rest) :]
                except BlockingIOError:
                    await _writable(sink)
        await link.wait()
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # an end was reset
        await link.wait()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


async def _writable(sink: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(sink, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sink)


def _open_link() -> asyncio.Event:
    link = asyncio.Event()
    link.set()
    return link


def _inode(source_port: int, target_port: int) -> str | None:
    """Return the inode of the socket with these local and remote ports."""
    ends = [f"0100007F:{port:04X}" for port in (source_port, target_port)]
    for line in (_PROC / "net/tcp").read_text(encoding="ascii").splitlines():
        columns = line.split()
        if columns[1:3] == ends:
            return columns[9]
    return None


def _has_open(pid: int, link: str) -> bool:
    directory = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(directory):
            with suppress(OSError):
                if os.readlink(f"{directory}/{name}") == link:
                    return True
    return False


async def _serve(broker_count: int) -> None:
    proxy = NetworkProxy()
    _say(json.dumps(proxy.listen(broker_count)))
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while line := await commands.readline():
        proxy.handle(json.loads(line))
        _say()


def _say(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    when_parent_ends(int(sys.argv[2]), partial(os._exit, 0))
    asyncio.run(_serve(int(sys.argv[1])))
