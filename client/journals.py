"""The journals of the controllers: files on this machine, and those that brokers read for us."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import orjson

from regent.client.cluster_connection import Cluster, ClusterNotFoundError
from regent.config.cluster_location import numbered_folders
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId
from regent.core.protocol.broker import DescribeEventsRequest, DescribeEventsResponse
from regent.storage.journal_reader import JOURNAL, PREVIOUS, read_part

_ASK_TIMEOUT_S: Final = 5.0
_LOOK_AGAIN_S: Final = 5.0  # for brokers that have started, or that did not answer
_LAST_BYTES: Final = 64 * 1024
_CLIENT_ID: Final = "regent-cli"


class EventsError(RegentError):
    """There are no journals to read."""


class Event(NamedTuple):
    """One line of a journal."""

    ts_ms: int
    line: str
    fields: dict[str, Any]

    @property
    def order(self) -> tuple[int, int]:
        """Its place among the events of all brokers: by time, then by the term."""
        epoch = self.fields.get("controller_epoch")
        return self.ts_ms, epoch if isinstance(epoch, int) else 0


class Journal(Protocol):
    """Where the journal of one broker is read."""

    def __call__(self, request: DescribeEventsRequest) -> DescribeEventsResponse:
        """Return a part of it. Raises ``RegentError``."""
        ...


class JournalReader:
    """Reads one broker's journal; each call of ``read`` continues after the last one.

    It begins near ``since_ms``, so that earlier events may come first; ``last_bytes``: but not
    before these.
    """

    def __init__(self, journal: Journal, since_ms: int = 0, last_bytes: int | None = None) -> None:
        self._journal = journal
        self._since_ms = since_ms
        self._next = DescribeEventsRequest(since_ms=since_ms, last_bytes=last_bytes)
        self._is_cut = False
        self._first_ms = 0
        self.is_begun = False
        """Whether it was read to its end once."""
        self.unreadable = 0
        """Number of unreadable lines, which a crash left incomplete."""

    def begin_at(self, since_ms: int) -> None:
        """Leave out earlier events; later ones may have such times, by a clock that is behind."""
        self._first_ms = since_ms
        self._next = DescribeEventsRequest(since_ms=since_ms)

    def read(self) -> Iterator[Event]:
        """Yield the complete events; an incomplete last line is left for the next call."""
        while True:
            part = self._journal(self._next)
            self._is_cut = self._is_cut or part.is_cut
            self.unreadable += part.unreadable
            if part.position is not None:
                self._next = DescribeEventsRequest(part.position)
            for line in part.lines:
                event = _parse(line)
                if event is None:
                    self.unreadable += 1
                elif self.is_begun or event.ts_ms >= self._first_ms:
                    yield event
            if part.is_end:
                self.is_begun = True
                return

    def last(self, count: int, is_shown: Callable[[Event], bool]) -> list[Event]:
        """Return the last events that are shown, and read on after them."""
        last_bytes = _LAST_BYTES
        while True:
            self._next = DescribeEventsRequest(since_ms=self._since_ms, last_bytes=last_bytes)
            self._is_cut, self.unreadable = False, 0
            found = deque((event for event in self.read() if is_shown(event)), count)
            if len(found) == count or not self._is_cut:
                return list(found)
            last_bytes *= 8


def _parse(line: str) -> Event | None:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    ts_ms = fields.get("ts_ms") if isinstance(fields, dict) else None
    return Event(ts_ms, line, fields) if isinstance(ts_ms, int) else None


class Journals:
    """The journals of a cluster: those in ``data_dir``, and of all other brokers of ``cluster``.

    ``cluster`` None: only those in the folder. ``broker_id``: only that of one broker. ``say`` gets
    a line for each broker whose journal cannot be read. ``last_bytes``: see ``JournalReader``.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        data_dir: Path | None,
        broker_id: BrokerId | None,
        since_ms: int,
        say: Callable[[str], None],
        last_bytes: int | None = None,
    ) -> None:
        self._last_bytes = last_bytes
        self._say = say
        self._cluster = cluster
        self._data_dir = data_dir
        self._broker_id = broker_id
        self._since_ms = since_ms
        self._begin_ms = 0
        self._remote = None if cluster is None else _RemoteJournals()
        self._readers: dict[BrokerId | Path, JournalReader] = {}
        self._silent: dict[BrokerId | Path, str] = {}
        self._looked_at = -_LOOK_AGAIN_S

    @property
    def unreadable(self) -> int:
        """Number of unreadable lines."""
        return sum(reader.unreadable for reader in self._readers.values())

    @property
    def is_far(self) -> bool:
        """Whether brokers are asked."""
        return self._remote is not None

    def close(self) -> None:
        """Close the connections."""
        if self._remote is not None:
            self._remote.close()

    def look(self) -> int:
        """Find the journals; return how many there are. Raises ``ClusterNotFoundError``."""
        local = self._directories()
        for directory in local.values():
            self._add(directory, _local(directory))
        if self._remote is not None and time.monotonic() - self._looked_at >= _LOOK_AGAIN_S:
            self._silent.clear()
            self._find_remote(local.keys())
            self._looked_at = time.monotonic()
        return len(self._readers)

    def begin_others_at(self, since_ms: int) -> None:
        """Let journals begin at this time that are found, or that can be read, from now on."""
        self._begin_ms = since_ms
        for reader in self._readers.values():
            if not reader.is_begun:
                reader.begin_at(since_ms)

    def new(self) -> Iterator[Event]:
        """Yield the events since the last call, by time."""
        parts = (self._guarded(key, reader.read) for key, reader in self._present())
        return heapq.merge(*parts, key=lambda event: event.order)

    def last(self, count: int, is_shown: Callable[[Event], bool]) -> list[Event]:
        """Return the last events that are shown."""
        parts = [
            self._guarded(key, lambda r=reader: r.last(count, is_shown))  # type: ignore[misc]
            for key, reader in self._present()
        ]
        merged = heapq.merge(*parts, key=lambda event: event.order)
        return list(deque(merged, count))

    @property
    def can_appear(self) -> bool:
        """Whether a journal may be found later."""
        return self.is_far or (self._data_dir is not None and self._data_dir.is_dir())

    def none(self) -> str:
        """Return the error when there are no journals."""
        if self.is_far:
            which = "of Regent" if self._broker_id is None else str(self._broker_id)
            return f"no broker {which} is registered whose journal could be read"
        whose = "any broker" if self._broker_id is None else f"broker {self._broker_id}"
        return (
            f"no {JOURNAL} of {whose} in {self._data_dir}; --data-dir names the folder of a"
            " cluster, --zookeeper a cluster whose brokers are asked"
        )

    def none_was_read(self) -> bool:
        """Whether no journal could be read."""
        return not self._readers or self._silent.keys() >= self._readers.keys()

    # --- inside ---

    def _present(self) -> list[tuple[BrokerId | Path, JournalReader]]:
        return [(key, r) for key, r in self._readers.items() if key not in self._silent]

    def _guarded(
        self, key: BrokerId | Path, read: Callable[[], Iterable[Event]]
    ) -> Iterator[Event]:
        """Yield the events; a journal that cannot be read is named, and left out for a while."""
        try:
            yield from read()
        except RegentError as error:
            if not isinstance(key, int):
                raise
            self._silent[key] = str(error)
            self._name(key, str(error))

    def _add(self, key: BrokerId | Path, journal: Journal) -> None:
        if key not in self._readers:
            reader = JournalReader(journal, self._since_ms, self._last_bytes)
            if self._begin_ms:
                reader.begin_at(self._begin_ms)
            self._readers[key] = reader

    def _name(self, broker_id: BrokerId, why: str) -> None:
        assert self._remote is not None
        if self._remote.is_news(broker_id, why):
            self._say(f"the journal of broker {broker_id} cannot be read: {why}")

    def _directories(self) -> Mapping[BrokerId, Path]:
        """Return the folders of brokers that have a journal."""
        if self._data_dir is None:
            return {}
        return {
            broker_id: folder
            for broker_id, folder in numbered_folders(self._data_dir, "broker").items()
            if self._broker_id in (None, broker_id)
            and any((folder / name).exists() for name in (JOURNAL, PREVIOUS))
        }

    def _find_remote(self, known: Set[BrokerId]) -> None:
        assert self._cluster is not None
        assert self._remote is not None
        try:
            with self._cluster.admin() as admin:
                brokers, ended = admin.read_brokers(), admin.read_ends() or {}
        except ClusterNotFoundError:
            if not self._readers:
                raise
            return  # those that are known are still asked
        for broker_id in sorted((brokers.keys() | ended.keys()) - known):
            if self._broker_id not in (None, broker_id):
                continue
            found = brokers.get(broker_id)
            if found is None:
                self._name(broker_id, "it is not registered, and nobody else has its journal")
            elif isinstance(found, BadDataError):
                self._name(broker_id, str(found))
            elif found.info.control_peer is None:
                self._name(broker_id, "it is a broker of Kafka, which keeps none")
            else:
                self._remote.connect(broker_id, found.info.control_peer)
                self._add(broker_id, self._remote.journal(broker_id))


def _local(directory: Path) -> Journal:
    def read(request: DescribeEventsRequest) -> DescribeEventsResponse:
        try:
            return read_part(directory, -1, request)
        except OSError as error:
            raise EventsError(f"{directory / JOURNAL}: {error.strerror}") from None

    return read


class _RemoteJournals:
    """Connections to the brokers that read their journals for us."""

    def __init__(self) -> None:
        from regent.transport.control.key_files import keys_of_command
        from regent.transport.control.sockets import new_context

        self._context = new_context(keys_of_command())
        self._actors: dict[BrokerId, tuple[str, Any]] = {}
        self._named: dict[BrokerId, str] = {}

    def close(self) -> None:
        for _, actor in self._actors.values():
            actor.close()
        self._context.destroy(linger=0)

    def is_news(self, broker_id: BrokerId, why: str) -> bool:
        """Whether this was not said before."""
        is_same = self._named.get(broker_id) == why
        self._named[broker_id] = why
        return not is_same

    def connect(self, broker_id: BrokerId, endpoint: str) -> None:
        """Use this address of a broker from now on."""
        from regent.transport.control.remote_ref import RemoteActorRef

        known = self._actors.get(broker_id)
        if known is None or known[0] != endpoint:
            if known is not None:
                known[1].close()
            actor = RemoteActorRef(self._context, endpoint, client_id=_CLIENT_ID)
            self._actors[broker_id] = endpoint, actor

    def journal(self, broker_id: BrokerId) -> Journal:
        """Return what asks a broker."""

        def read(request: DescribeEventsRequest) -> DescribeEventsResponse:
            from regent.transport.control.remote_ref import ask

            _, actor = self._actors[broker_id]
            answer = ask(actor, request, DescribeEventsResponse, timeout_s=_ASK_TIMEOUT_S)
            if answer.error_code is not Errors.NONE:
                raise EventsError(answer.error_code.name)
            if answer.broker_id != broker_id:
                raise EventsError(f"broker {answer.broker_id} answered")
            self._named.pop(broker_id, None)
            return answer

        return read
