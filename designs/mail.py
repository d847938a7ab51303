"""The mail between brokers of the designs before the controller: fetches and their answers.

One thread for each other broker sends everything that waits for it in one request. So the fetches
of ten thousand replicas are a few requests.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from regent.config.threads import NamedThread
from regent.core.model import BrokerId
from regent.designs.requests import (
    DeliverMailRequest,
    DeliverMailResponse,
    FetchRecords,
    RecordsFetched,
    ReplicaMail,
)
from regent.designs.wire import Peer, SilentPeerError

logger = logging.getLogger(__name__)

MAX_MESSAGES: Final = 5_000
"""The messages of one request; the rest goes with the next."""

_TIMEOUT_S: Final = 5.0
_KNOCK_S: Final = 5.0
"""Without mail, how often another broker is asked whether it is still the same process."""


class PostOffice:
    """The ``OtherBrokers`` of a broker process.

    ``address_of`` finds where a broker listens now, None when it is not registered.
    ``deliver`` gets the fetches that could not be delivered back, as refused ones. ``on_restarted``
    gets a broker that has forgotten what it was sent.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        address_of: Callable[[BrokerId], str | None],
        deliver: Callable[[ReplicaMail], None],
        on_restarted: Callable[[BrokerId], None],
    ) -> None:
        self._broker_id = broker_id
        self._address_of = address_of
        self._deliver = deliver
        self._on_restarted = on_restarted
        self._lock = threading.Lock()
        self._postmen: dict[BrokerId, _Postman] = {}

    def send(self, broker_id: BrokerId, message: ReplicaMail, /) -> None:
        """See ``OtherBrokers.send``."""
        with self._lock:
            postman = self._postmen.get(broker_id)
            if postman is None:
                postman = self._postmen[broker_id] = self._hire(broker_id)
        postman.take(message)

    @property
    def sent(self) -> int:
        """How many requests other brokers answered."""
        return sum(postman.sent for postman in list(self._postmen.values()))

    def close(self) -> None:
        """Send nothing more."""
        for postman in list(self._postmen.values()):
            postman.close()

    def _hire(self, broker_id: BrokerId) -> _Postman:
        def on_lost(fetches: list[FetchRecords]) -> None:
            for fetch in fetches:
                self._deliver(RecordsFetched(fetch.topic_partition, fetch.turn, is_leader=False))

        return _Postman(
            name=f"mail-{self._broker_id}-to-{broker_id}",
            address=lambda: self._address_of(broker_id),
            on_lost=on_lost,
            on_restarted=lambda: self._on_restarted(broker_id),
        )


class _Postman:
    """The thread that carries the mail to one broker."""

    def __init__(
        self,
        *,
        name: str,
        address: Callable[[], str | None],
        on_lost: Callable[[list[FetchRecords]], None],
        on_restarted: Callable[[], None],
    ) -> None:
        self.sent = 0
        self._name = name
        self._address = address
        self._on_lost = on_lost
        self._on_restarted = on_restarted
        self._waiting: deque[ReplicaMail] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._peer: Peer | None = None
        self._incarnation: int | None = None
        self._thread = NamedThread(self._run, name)
        self._thread.start()

    def take(self, message: ReplicaMail) -> None:
        with self._changed:
            self._waiting.append(message)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed, _KNOCK_S)
                if self._is_closed:
                    break
                count = min(len(self._waiting), MAX_MESSAGES)
                messages = [self._waiting.popleft() for _ in range(count)]
            self._carry(messages)
        self._disconnect()

    def _carry(self, messages: list[ReplicaMail]) -> None:
        fetches = [message for message in messages if isinstance(message, FetchRecords)]
        fetched = [message for message in messages if isinstance(message, RecordsFetched)]
        if not messages and self._incarnation is None:
            return  # it is known to be gone
        try:
            response = self._ask(DeliverMailRequest(tuple(fetches), tuple(fetched)))
        except SilentPeerError as error:
            logger.info("%s: %s", self._name, error)
            self._disconnect()
            self._note(None)
            self._on_lost(fetches)
            return
        self.sent += 1
        self._note(response.incarnation)

    def _note(self, incarnation: int | None) -> None:
        """Note which process answered; None: none did."""
        former, self._incarnation = self._incarnation, incarnation
        if former not in (None, incarnation):
            self._on_restarted()

    def _ask(self, request: DeliverMailRequest) -> DeliverMailResponse:
        if self._peer is None:
            address = self._address()
            if address is None:
                raise SilentPeerError("the broker is not registered")
            self._peer = Peer(address)
        return self._peer.ask(request, DeliverMailResponse, timeout_s=_TIMEOUT_S)

    def _disconnect(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
