"""Creates topics that clients need and that do not exist, and tells clients why it cannot.

Part of the ForwardingManager, on its thread. Mirrors ``kafka.server.AutoTopicCreationManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from regent.actors.inbox import Reply
from regent.actors.scheduler import OneShotTimer, monotonic_ms
from regent.core.admin.admin_requests import PASSING
from regent.core.errors import ApiError
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    PlacementOptions,
)
from regent.core.protocol.topics import error_of
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.topic_validation import INTERNAL_TOPICS

logger = logging.getLogger(__name__)

CREATION_TIMEOUT_MS = 1_000
CLIENT_WAIT_MS = 250
"""How long a client waits for the creation, or for the reason why there is none."""
MAX_MISSING = 1_000
MAX_WAITING_CLIENTS = 1_000
MAX_REFUSALS = 1_000
REFUSAL_MS = 10_000
"""How long a refusal is told to clients that do not get a newer answer in time."""
LOG_AGAIN_MS = 60_000

Creatable: TypeAlias = Callable[[str], CreatableTopic]
"""Returns the topic to create for a name: its size and settings."""
SendCreation: TypeAlias = Callable[[CreateTopicsRequest, Reply], None]


class CreationRefusal(NamedTuple):
    """Why a topic was not created at the last attempt, on the monotonic clock."""

    error: ApiError
    at_ms: int
    logged_ms: int


@dataclass(slots=True, eq=False)
class _Client:
    """A client that waits; ``undecided``: its topics without an outcome yet."""

    topics: Collection[str]
    undecided: set[str]
    reply: Reply
    deadline_ms: int


class AutomaticCreation:
    """One request is in flight at a time, for all topics that were missed before it was sent.

    ``refusals`` may be read on any thread.
    """

    def __init__(
        self,
        name: str,
        cache: MetadataCache,
        creatable: Creatable,
        send: SendCreation,
        timer: OneShotTimer,
    ) -> None:
        self.refusals: dict[str, CreationRefusal] = {}  # the latest last
        self._name = name
        self._cache = cache
        self._creatable = creatable
        self._send = send
        self._timer = timer
        self._missing: dict[str, None] = {}  # in arrival order
        self._being_created: tuple[str, ...] = ()
        self._began_ms = 0
        self._clients: list[_Client] = []

    def want(self, topics: Collection[str], reply: Reply) -> None:
        """Create topics; the answer is the errors of those that cannot be created, by topic.

        It comes at the latest after ``CLIENT_WAIT_MS``, at once while an earlier creation takes
        longer than that. A topic without an error will exist soon.
        """
        for topic in topics:
            if len(self._missing) < MAX_MISSING and topic not in self._being_created:
                self._missing[topic] = None
        now_ms = monotonic_ms()
        began_ms = self._began_ms if self._being_created else now_ms
        client = _Client(topics, set(topics), reply, began_ms + CLIENT_WAIT_MS)
        if client.deadline_ms <= now_ms or len(self._clients) >= MAX_WAITING_CLIENTS:
            self._answer(client)
        else:
            self._clients.append(client)
            if not self._timer.is_pending:
                self._timer.set(client.deadline_ms - now_ms)
        self._create_missing()

    def on_decided(self, results: Iterable[CreatableTopicResult]) -> None:
        """Take the decisions of the controller; created topics are not known here yet."""
        failed = {row.name: error_of(row) for row in results if row.error_code}
        self._note(failed)
        self._settle(failed)

    def on_time(self) -> None:
        """Answer the clients that have waited long enough."""
        now_ms = monotonic_ms()
        late = [client for client in self._clients if client.deadline_ms <= now_ms]
        self._clients = [client for client in self._clients if client.deadline_ms > now_ms]
        for client in late:
            self._answer(client)
        if self._clients:
            first_ms = min(client.deadline_ms for client in self._clients)
            self._timer.set(first_ms - now_ms)

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _create_missing(self) -> None:
        """Send the next request. The placement service does not place internal topics.

        They are needed at once, and it may be starting. A request for others does not wait for it,
        because internal topics would wait, too: it is answered, and goes on in the background.
        """
        if self._being_created:
            return
        known = self._cache.snapshot.topic_ids
        self._settle([topic for topic in self._missing if topic in known])
        wanted = [topic for topic in self._missing if topic not in known]
        internal = [topic for topic in wanted if topic in INTERNAL_TOPICS]
        self._being_created, self._began_ms = tuple(internal or wanted), monotonic_ms()
        self._missing = {topic: None for topic in wanted if topic not in self._being_created}
        if self._being_created:
            request = CreateTopicsRequest(
                topics=tuple(map(self._creatable, self._being_created)),
                timeout_ms=CREATION_TIMEOUT_MS,
                placement=PlacementOptions(use_service=not internal, awaits_service=True),
            )
            self._send(request, Reply.of(self._on_created))

    def _on_created(self, answer: Any) -> None:
        """Take the answer: brokers know the new topics; runs on the thread of the actor."""
        created = [row.name for row in answer.topics if not row.error_code]
        if created:
            text = "%s: created %d topics on demand, the first %s"
            logger.info(text, self._name, len(created), created[0])
        for topic in created:
            self.refusals.pop(topic, None)
        self._note({row.name: error_of(row) for row in answer.topics if row.error_code})
        done, self._being_created = self._being_created, ()
        self._settle(done)
        self._create_missing()

    def _note(self, failed: Mapping[str, ApiError]) -> None:
        """Remember why topics are not created, and log what was not logged lately."""
        now_ms, news = monotonic_ms(), []
        for topic, error in failed.items():
            known = self.refusals.pop(topic, None)
            logged_ms = now_ms
            if (
                known is not None
                and known.error.error_code is error.error_code
                and now_ms < known.logged_ms + LOG_AGAIN_MS
            ):
                logged_ms = known.logged_ms
            else:
                news.append((topic, error))
            self.refusals[topic] = CreationRefusal(error, now_ms, logged_ms)
        while len(self.refusals) > MAX_REFUSALS:
            del self.refusals[next(iter(self.refusals))]
        if news:
            topic, error = news[0]
            passes = all(error.error_code in PASSING for _, error in news)
            logger.log(
                logging.INFO if passes else logging.WARNING,
                "%s: cannot create %d topics on demand, the first %s: %s: %s",
                self._name,
                len(news),
                topic,
                error.error_code.name,
                error.message,
            )

    def _settle(self, topics: Iterable[str]) -> None:
        """Answer the clients that wait for no other topics."""
        settled = set(topics)
        waiting = []
        for client in self._clients:
            client.undecided -= settled
            if client.undecided:
                waiting.append(client)
            else:
                self._answer(client)
        self._clients = waiting

    def _answer(self, client: _Client) -> None:
        since_ms = monotonic_ms() - REFUSAL_MS
        known = {topic: self.refusals.get(topic) for topic in client.topics}
        errors: Mapping[str, ApiError] = {
            topic: refusal.error
            for topic, refusal in known.items()
            if refusal is not None and refusal.at_ms >= since_ms
        }
        client.reply.set(errors)
