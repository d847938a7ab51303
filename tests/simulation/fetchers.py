"""A broker's fetchers, as ``actors.replica_fetcher``: one request at a time for each leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regent.core.model import NO_EPOCH, BrokerId
from regent.core.protocol.broker import FetchRequest, FetchResponse
from tests.simulation.channel import REQUEST_TIMEOUT_MS
from tests.simulation.network import AnswerBody, Exchange

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

FETCH_INTERVAL_MS = 1_000
SOON_MS = 1


class Fetchers:
    """Fetches in intervals, and at once after an answer with news."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._world = broker.world
        self.has_errors = False  # the answer that is taken, for some partitions
        self._fetches: dict[BrokerId, Exchange] = {}

    def fetch_again_and_again(self) -> None:
        """Fetch from every leader, and schedule the next time."""
        self._world.time.schedule(self._broker, FETCH_INTERVAL_MS, self.fetch_again_and_again)
        leaders = self._broker.replica_manager.leaders_to_fetch_from()
        for leader, endpoint in sorted(leaders.items()):
            self._fetch(leader, endpoint)

    def _fetch(self, leader: BrokerId, endpoint: str) -> None:
        now_ms, manager = self._world.time.now_ms, self._broker.replica_manager
        waiting = self._fetches.get(leader)
        if waiting is not None and not waiting.is_over:
            if now_ms - waiting.sent_ms < REQUEST_TIMEOUT_MS:
                return
            waiting.give_up()
        request = self._next_request(leader, endpoint)
        if request is None:
            return

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, FetchResponse)
            self.has_errors = any(row.error_code for _, row in answer.partitions())
            manager.on_fetch_response(leader, request, answer, self._broker.now_ms)
            self._broker.acted()
            if _says_something(answer):
                self._world.time.schedule(
                    self._broker, SOON_MS, lambda: self._fetch_more(leader, endpoint)
                )

        self._fetches[leader] = self._world.network.ask(
            self._broker, endpoint, self._sent(request), on_answer
        )

    def _next_request(self, leader: BrokerId, endpoint: str) -> FetchRequest | None:
        """Return the next fetch from a leader; None: there is nothing to fetch now."""
        return self._broker.replica_manager.fetch_request(leader, self._broker.now_ms)

    def _sent(self, request: FetchRequest) -> FetchRequest:
        """Return a fetch as the leader gets it."""
        return request

    def _fetch_more(self, leader: BrokerId, endpoint: str) -> None:
        if self._broker.replica_manager.leaders_to_fetch_from().get(leader) == endpoint:
            self._fetch(leader, endpoint)


def _says_something(answer: FetchResponse) -> bool:
    return any(
        row.records.size > 0 or row.diverging_epoch != NO_EPOCH for _, row in answer.partitions()
    )
