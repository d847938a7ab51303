"""Holds a port until there is a protocol to speak on it: accepts and closes."""

from __future__ import annotations

import socket
import threading

from core.errors import RegentError


class ListenError(RegentError):
    """A port cannot be listened on; the message names it and the remedy."""


class PlaceholderListener:
    """A listening socket on ``host:port`` (0: any free port) with a thread of its own."""

    def __init__(self, host: str, port: int, name: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or choose"
                " another port"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.close()
