"""Follows the configurations in ZooKeeper, or the ACLs, on a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.core.errors import SessionExpiredError

logger = logging.getLogger(__name__)


class Followed(Protocol):
    """What reads changes: ``DynamicConfigManager``, or ``AclCache``."""

    def catch_up(self, *, sync: bool = False) -> None:
        """Read and apply what changed; ``sync``: also what another server has not told this one.

        Raises ``SessionExpiredError``.
        """
        ...


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """A configuration changed, or a new session began and may have missed a change."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Apply every configuration change that was acknowledged before this message was sent.

    The answer is None when that is done, or ``SessionExpiredError``.
    """


class ConfigListener(RegentActor):
    """Acts only on messages.

    Between sessions ``ConfigsChanged`` does nothing: the next session sends it again.
    """

    def __init__(
        self, name: str, configs: Followed, *, supervisor: Supervisor | None = None
    ) -> None:
        super().__init__(name, supervisor=supervisor)
        self._configs = configs

    @staticmethod
    def collapse_key(message: object) -> Hashable | None:
        """One queued message is enough: it covers all changes."""
        return message if isinstance(message, ConfigsChanged) else None

    def handle(self, message: ConfigsChanged | CatchUp, reply: Reply | None) -> None:
        """Read and apply the changes."""
        try:
            self._configs.catch_up(sync=isinstance(message, CatchUp))
        except SessionExpiredError as expired:
            logger.info("%s: %s", self.name, expired)
            if reply is not None and isinstance(message, CatchUp):
                reply.fail(expired)
        if reply is not None:
            reply.set(None)
