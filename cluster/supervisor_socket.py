"""A Unix socket in the folder of a running ``cluster``: it is asked there to start processes.

Each connection has one request and one answer, both a line of JSON. Commands send
``{"start": [2]}``, or ``{"start": null}`` for all brokers that do not run. The answer comes when
those brokers are ready: ``{"started": [{"id", "pid", "host", "port", …}]}``, or ``{"error": why}``
as soon as one fails. Brokers send ``{"start": "placement"}`` when a topic needs the placement
service. The answer comes at once: ``{"placement": {"pid", "endpoint", "message"}}``, or an error.
Only the owner of the socket can connect.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regent.cluster.cluster_file import PlacementEntry
from regent.cluster.process_supervisor import ProcessSupervisor
from regent.config.cluster_location import DATA_DIR
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.model import BrokerId

SOCKET_FILE = ".cluster.socket"
_PLACEMENT = "placement"

_MAX_LINE_BYTES = 64 * 1024
_MAX_CONNECTIONS = 64


class SupervisorError(RegentError):
    """The ``cluster`` command did not do what was requested; the message says why."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Start these brokers (None: all that do not run). Call ``answer`` once, with the answer."""

    broker_ids: tuple[BrokerId, ...] | None
    answer: Callable[[dict[str, Any]], None]


class SupervisorSocket:
    """The side of ``cluster``: calls ``on_request`` inside ``ProcessSupervisor.wait``."""

    def __init__(
        self,
        data_dir: Path,
        processes: ProcessSupervisor,
        on_request: Callable[[StartRequest], None],
        start_placement: Callable[[], PlacementEntry],
    ) -> None:
        """``start_placement``: see ``PlacementChild.start``; it may raise ``SupervisorError``."""
        self._data_dir = data_dir
        self._processes = processes
        self._on_request = on_request
        self._start_placement = start_placement
        self._connections: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def open(self) -> None:
        """Listen; raises ``OSError``. Replaces the socket file that a killed process left."""
        self._listener.setblocking(False)
        with _address(self._data_dir) as address:
            with suppress(FileNotFoundError):
                os.unlink(address)
            self._listener.bind(address)
            os.chmod(address, 0o600)
        self._listener.listen(_MAX_CONNECTIONS)
        self._processes.watch(self._listener, self._accept)

    def close(self) -> None:
        """Stop listening; a client that waits for an answer sees the end of the connection."""
        self._processes.forget(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            self._drop(connection)
        (self._data_dir / SOCKET_FILE).unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        if len(self._connections) >= _MAX_CONNECTIONS:
            connection.close()
            return
        self._connections.add(connection)
        received = bytearray()
        self._processes.watch(connection, lambda: self._read(connection, received))

    def _read(self, connection: socket.socket, received: bytearray) -> None:
        try:
            data = connection.recv(_MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        received += data
        if not data or len(received) > _MAX_LINE_BYTES:
            self._drop(connection)
        elif received.endswith(b"\n"):
            line = bytes(received)
            received.clear()
            try:
                wanted = _wanted(line)
                if isinstance(wanted, str):
                    self._answer(connection, {_PLACEMENT: asdict(self._start_placement())})
                else:
                    self._on_request(StartRequest(wanted, lambda a: self._answer(connection, a)))
            except SupervisorError as error:
                self._answer(connection, {"error": str(error)})
            except ValueError as error:
                self._answer(connection, {"error": f"not understood: {error}"})

    def _answer(self, connection: socket.socket, answer: dict[str, Any]) -> None:
        with suppress(OSError):
            connection.sendall(json.dumps(answer).encode() + b"\n")
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._processes.forget(connection)
            connection.close()


def start_brokers(
    data_dir: Path, broker_ids: tuple[BrokerId, ...] | None, timeout_s: float
) -> list[dict[str, Any]]:
    """Ask the ``cluster`` command of a data directory to start brokers; return those started.

    Raises ``SupervisorError``.
    """
    wanted = None if broker_ids is None else list(broker_ids)
    started: list[dict[str, Any]] = _ask(data_dir, wanted, timeout_s)["started"]
    return started


def start_placement(data_dir: Path, timeout_s: float) -> PlacementEntry:
    """Ask the ``cluster`` command to start the placement service; return its state.

    Raises ``SupervisorError``.
    """
    return PlacementEntry(**_ask(data_dir, _PLACEMENT, timeout_s)[_PLACEMENT])


def _ask(data_dir: Path, wanted: object, timeout_s: float) -> dict[str, Any]:
    request = {"start": wanted}
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
            _address(data_dir) as address,
        ):
            connection.settimeout(timeout_s)
            connection.connect(address)
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = connection.makefile("rb").readline(_MAX_LINE_BYTES)
    except (FileNotFoundError, ConnectionRefusedError):
        raise SupervisorError(
            f"no cluster runs on {data_dir}: start it with `{program()} cluster{_where(data_dir)}`"
        ) from None
    except TimeoutError:
        raise SupervisorError(f"the cluster did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise SupervisorError(f"the cluster on {data_dir} cannot be reached: {error}") from None
    if not line:
        raise SupervisorError(f"the cluster on {data_dir} has stopped")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise SupervisorError(str(answer["error"]))
    return answer


def start_command(data_dir: Path, broker_id: BrokerId) -> str:
    """Return the command that starts a broker again."""
    return f"{program()} brokers start {broker_id}{_where(data_dir)}"


def _where(data_dir: Path) -> str:
    """Return the option for a data directory; nothing for the default."""
    return "" if data_dir == DATA_DIR else f" --data-dir {shlex.quote(str(data_dir))}"


def _wanted(line: bytes) -> tuple[BrokerId, ...] | str | None:
    """Return the brokers that a request names (None: all), or ``_PLACEMENT``.

    Raises ``ValueError``.
    """
    request = json.loads(line)
    wanted = request.get("start", "") if isinstance(request, dict) else ""
    if wanted is None or wanted == _PLACEMENT:
        return wanted
    if not isinstance(wanted, list) or not all(type(broker_id) is int for broker_id in wanted):
        raise ValueError('the requests are {"start": [broker ids]} and {"start": "placement"}')
    return tuple(wanted)


@contextmanager
def _address(data_dir: Path) -> Iterator[str]:
    """Yield a short path to the socket, because a socket's address is limited to 107 bytes."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{SOCKET_FILE}"
    finally:
        os.close(directory)
