"""A TCP proxy that can lose connections and answers."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

from regent.testing.waits import scaled


class TcpProxy:
    """Forwards connections to ``target``, a ``host:port``. Use it as a context manager."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_cut = False
        self._answers_pass = True
        self._unanswered = 0  # number of future connections
        self._most_bytes: int | None = None  # of a client
        self._mute: list[socket.socket] = []
        self._spawn(self._accept)

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Break all connections, and each new one, until ``restore``."""
        with self._lock:
            self._is_cut = True
            connections, self._connections = self._connections, []
        for connection in connections:
            _shut(connection)

    def restore(self) -> None:
        """Accept new connections, and forward in both directions."""
        with self._lock:
            self._is_cut = False
            self._answers_pass = True

    def drop_answers(self) -> None:
        """Forward requests, and drop the server's answers."""
        with self._lock:
            self._answers_pass = False

    def leave_unanswered(self, connections: int) -> None:
        """Accept this number of future connections and never send on them."""
        with self._lock:
            self._unanswered = connections

    def forward_at_most(self, most_bytes: int) -> None:
        """Forward so many bytes of each client, and lose what it sends then."""
        self._most_bytes = most_bytes

    def close(self) -> None:
        """Break everything, permanently."""
        self.cut()
        _shut(self._listener)
        for thread in self._threads:
            thread.join(scaled(5.0))
        for sock in (self._listener, *self._mute):
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                refused = self._is_cut
                is_mute = not refused and self._unanswered > 0
                if is_mute:
                    self._unanswered -= 1
                    self._mute.append(client)
            if refused:
                client.close()
            if refused or is_mute:
                continue
            server = socket.create_connection(self._target, scaled(5.0))
            server.settimeout(None)
            with self._lock:
                self._connections += [client, server]
            self._spawn(self._forward, client, server, False)
            self._spawn(self._forward, server, client, True)

    def _forward(self, source: socket.socket, sink: socket.socket, is_answers: bool) -> None:
        forwarded = 0
        with source:
            while True:
                try:
                    data = source.recv(65536)
                    if not data:
                        break
                    if not is_answers and self._most_bytes is not None:
                        data = data[: self._most_bytes - forwarded]
                        forwarded += len(data)
                    if self._answers_pass or not is_answers:
                        sink.sendall(data)
                except OSError:
                    break
            _shut(sink)

    def _spawn(self, target: object, *args: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=args, name="tcp-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
