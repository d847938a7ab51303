"""Notifies the controller, through ZooKeeper, that a log directory of this broker has failed.

Mirrors the ZooKeeper half of ``kafka.server.ReplicaManager.LogDirFailureHandler``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeAlias

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.request_store import notify_log_dir_failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryFailed:
    """A log directory failed: notify the controller once more."""


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """A new session has begun: retry a notification that failed."""


NotifierMessage: TypeAlias = DirectoryFailed | SessionBegun


class LogDirEventNotifier(RegentActor):
    """Retries each notification until it succeeds, across sessions."""

    def __init__(
        self, broker_id: BrokerId, zookeeper: ZooKeeper, *, supervisor: Supervisor | None = None
    ) -> None:
        super().__init__(f"log-dir-event-notifier-{broker_id}", supervisor=supervisor)
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._is_due = False

    def handle(self, message: NotifierMessage, reply: Reply | None) -> None:
        """Create the notification if one is due."""
        self._is_due = self._is_due or isinstance(message, DirectoryFailed)
        if self._is_due:
            try:
                notify_log_dir_failure(self._zookeeper, self._broker_id)
                self._is_due = False
            except RegentError as error:
                logger.warning("%s: cannot notify the controller yet: %s", self.name, error)
        if reply is not None:
            reply.set(None)
