"""Decides topic requests, on the active controller's broker."""

from __future__ import annotations

import logging
from functools import partial

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.core.admin.admin_manager import AdminManager
from regent.core.admin.client_authorization import decide_for_client
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.core.protocol.envelope import EnvelopeRequest, EnvelopeResponse
from regent.core.protocol.topics import TopicsRequest
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.authorizer import ALLOW_ALL, Authorizer

logger = logging.getLogger(__name__)

DECISION_TIMEOUT_MS = 5_000
"""How long a broker waits for a decision; then it repeats the request."""


class TooLateError(RegentError):
    """The sender no longer waits for the answer."""


class TopicRequestHandler(RegentActor):
    """Owns the AdminManager; blocks on ZooKeeper and on the placement service.

    ``cache`` knows the ids of topics, which are authorized by their names.
    """

    inbox_limit = 1_000

    def __init__(
        self,
        broker_id: BrokerId,
        manager: AdminManager,
        cache: MetadataCache,
        authorizer: Authorizer = ALLOW_ALL,
        *,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"broker-{broker_id}-topic-request-handler", supervisor=supervisor)
        self._manager = manager
        self._cache = cache
        self._authorizer = authorizer
        self._is_failing = False

    def handle(self, message: EnvelopeRequest, reply: Reply | None) -> None:
        """Decide and answer at once; ``ForwardingManager`` waits until brokers know the change."""
        if reply is None:
            return
        try:
            if self.queue_ms > DECISION_TIMEOUT_MS:
                raise TooLateError("too many requests wait for a decision")
            decide = partial(self._manager.decide, requester=message.requester)
            snapshot = self._cache.snapshot
            request = message.request
            assert isinstance(request, TopicsRequest)  # the controller takes all others
            decided = decide_for_client(request, message.client, self._authorizer, snapshot, decide)
            reply.set(EnvelopeResponse.of(decided))
            self._is_failing = False
        except RegentError as error:  # it may be partly done; the sender repeats it
            log = logger.debug if self._is_failing else logger.warning
            log("%s: a request about topics: %s", self.name, error)
            self._is_failing = True
            reply.fail(error)
