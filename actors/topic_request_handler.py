"""Decides what clients ask of topics, at the broker that rules."""

from __future__ import annotations

import logging

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.core.admin.admin_manager import AdminManager
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.core.protocol.topics import TopicsRequest, TopicsResponse

logger = logging.getLogger(__name__)

DECISION_TIMEOUT_MS = 5_000
"""How long whoever asks waits for a decision; after that it is asked for again."""


class TooLateError(RegentError):
    """Whoever asked no longer waits."""


class TopicRequestHandler(RegentActor):
    """Owns the AdminManager; ZooKeeper and the placement service may keep it waiting."""

    inbox_limit = 1_000

    def __init__(
        self, broker_id: BrokerId, manager: AdminManager, *, supervisor: Supervisor | None = None
    ) -> None:
        super().__init__(f"broker-{broker_id}-topic-request-handler", supervisor=supervisor)
        self._manager = manager
        self._is_failing = False

    def handle(self, message: TopicsRequest, reply: Reply | None) -> None:
        """Decide, and answer with what was decided; waiting for the cluster is up to the asker."""
        if reply is None:
            return
        try:
            if self.queue_ms > DECISION_TIMEOUT_MS:
                raise TooLateError("there is too much to decide")
            reply.set(TopicsResponse(self._manager.decide(message)))
            self._is_failing = False
        except RegentError as error:  # it may have been done in part; it is asked for again
            log = logger.debug if self._is_failing else logger.warning
            log("%s: %s: %s", self.name, type(message).__name__, error)
            self._is_failing = True
            reply.fail(error)
