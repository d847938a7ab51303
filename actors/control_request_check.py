"""Asks ZooKeeper about controllers that a broker does not know yet.

A control request of such a controller waits here, and not in the Broker actor, which carries out
other requests meanwhile. At a failover several requests arrive at once: one read serves them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pykka import ActorDeadError, ActorRef

from regent.actors.inbox import MessageWithReply, Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.ports import ControlFacts
from regent.core.protocol.control import ControlHeader, ControlRequest
from regent.core.replication.control_request_fence import ControlRequestRefusedError

ReadControlFacts: TypeAlias = Callable[[ControlHeader], ControlFacts]
"""Reads what ZooKeeper says about a header: waits for a connection until the session is over.

Raises ``RegentError`` when there is no session, and ``BadDataError``.
"""


@dataclass(frozen=True, slots=True)
class ControlRequestReceived:
    """A controller's request with its header; ``facts`` about that if they were read.

    ``request`` None: it is large, and is read when it is known that its sender is the controller.
    """

    header: ControlHeader
    request: ControlRequest | None
    facts: ControlFacts | None = None


class ControlRequestCheck(RegentActor):
    """Returns each request to the Broker actor with what ZooKeeper says about its header.

    A request that cannot be checked now is answered with an error after which its sender repeats
    it.
    """

    inbox_limit = 1_000

    def __init__(
        self,
        name: str,
        broker: ActorRef[Any],
        read: ReadControlFacts,
        *,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(name, supervisor=supervisor)
        self._broker = broker
        self._read = read
        self._facts: ControlFacts | None = None  # of the newest read
        self._read_at = 0.0  # when that began

    def handle(self, message: ControlRequestReceived, reply: Reply | None) -> None:
        """Read ZooKeeper, unless the newest read tells enough about this request."""
        queued_at = time.monotonic() - self.queue_ms / 1000
        facts = self._facts
        try:
            if facts is None or not (facts.confirm(message.header) or queued_at < self._read_at):
                self._read_at = time.monotonic()
                facts = self._facts = self._read(message.header)
            pass_on(self._broker, replace(message, facts=facts), reply)
        except BadDataError as error:
            refuse(reply, Errors.NOT_CONTROLLER, error)
        except (RegentError, ActorDeadError) as error:
            refuse(reply, Errors.BROKER_NOT_AVAILABLE, error)


def pass_on(actor: ActorRef[Any], message: ControlRequestReceived, reply: Reply | None) -> None:
    """Tell an actor a request; raises ``ActorDeadError`` and ``InboxFullError``."""
    actor.tell(message if reply is None else MessageWithReply(message, reply))


def refuse(reply: Reply | None, error_code: Errors, why: Exception) -> None:
    """Answer that a request is not carried out, so that its sender repeats it."""
    if reply is not None:
        reply.fail(ControlRequestRefusedError(error_code, str(why)))
