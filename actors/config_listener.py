"""Follows what brokers are notified of in ZooKeeper, as configurations, on a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from pykka import ActorDeadError, Timeout

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor, start_actor, stop_actor
from regent.core.errors import SessionExpiredError

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0


class Followed(Protocol):
    """What a broker knows of a part of ZooKeeper, such as its ``DynamicConfigManager``."""

    def catch_up(self, *, sync: bool = False) -> None:
        """Apply what changed; ``sync``: with all that was acknowledged before this call.

        Raises ``SessionExpiredError``; the next call then applies what this one did not.
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
        self, name: str, followed: Followed, *, supervisor: Supervisor | None = None
    ) -> None:
        super().__init__(name, supervisor=supervisor)
        self._followed = followed

    @staticmethod
    def collapse_key(message: object) -> Hashable | None:
        """One queued message is enough: it covers all changes."""
        return message if isinstance(message, ConfigsChanged) else None

    def handle(self, message: ConfigsChanged | CatchUp, reply: Reply | None) -> None:
        """Read and apply the changes."""
        try:
            self._followed.catch_up(sync=isinstance(message, CatchUp))
        except SessionExpiredError as expired:
            logger.info("%s: %s", self.name, expired)
            if reply is not None and isinstance(message, CatchUp):
                reply.fail(expired)
        if reply is not None:
            reply.set(None)


class Following:
    """A listener that runs; any thread calls it. ``close`` ends it."""

    def __init__(self, name: str, followed: Followed) -> None:
        self._ref = start_actor(ConfigListener, name, followed)

    def look(self) -> None:
        """Apply the changes soon: a watch has fired, or a session has begun."""
        with suppress(ActorDeadError):
            self._ref.tell(ConfigsChanged())

    def look_if(self, must: object) -> None:
        """Look soon if something may have been missed."""
        if must:
            self.look()

    def catch_up(self) -> None:
        """Apply every change that was acknowledged before. Raises ``SessionExpiredError``."""
        try:
            self._ref.ask(CatchUp(), timeout=_TIMEOUT_S)
        except (ActorDeadError, Timeout) as error:
            raise SessionExpiredError(f"cannot read configurations: {error}") from error

    def close(self) -> None:
        """End the listener."""
        stop_actor(self._ref, _TIMEOUT_S)
