"""Brokers that are registered and do not answer.

In Kafka a broker that hangs keeps its leaderships while its ZooKeeper session exists. With
``broker_answer_timeout_ms`` every broker regularly gets an empty LeaderAndIsr. A broker that
responds to no request for that long is treated as if it had asked to shut down: its leaderships
move and it leaves the ISRs, in leader epochs that it does not know and that fence it. Where no
other replica is in sync, it stays the leader. It stays registered with its broker epoch and still
gets control requests. After its first response it is used again.

Time is counted in checks, not by a clock, because a paused controller makes no checks. While no
broker responds, the controller's own included, the fault is in the controller, and no broker is
fenced.
"""

from __future__ import annotations

from regent.core.controller.brokers.controlled_shutdown import ControlledShutdowns
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.events import CheckBrokers
from regent.core.controller.services import ControllerServices
from regent.core.model import BrokerId
from regent.core.protocol.control import ControlHeader, LeaderAndIsrRequest, LeaderAndIsrType

LOOKS = 4  # checks within ``broker_answer_timeout_ms``
_PROBE = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ())


class BrokerHealth:
    """Probes brokers, and moves leaderships away from those that do not answer."""

    def __init__(self, services: ControllerServices, shutdowns: ControlledShutdowns) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._shutdowns = shutdowns
        self._missed: dict[BrokerId, int] = {}  # checks since the last response

    def load(self) -> None:
        """Send the first probes of a term, if ``broker_answer_timeout_ms`` is set."""
        self._missed.clear()
        if self._services.settings.broker_answer_timeout_ms > 0:
            self._probe()

    def check(self) -> None:
        """Move leaderships off brokers that have not answered for too long, and probe again."""
        if self._services.settings.broker_answer_timeout_ms == 0:
            return  # switched off since
        registered = self._context.registrations
        missed = {b: self._missed.get(b, 0) + 1 for b in registered}
        if any(b not in self._missed for b in registered):
            self._missed = missed
            self._relieve([b for b in sorted(missed) if missed[b] > LOOKS and self._is_in_use(b)])
        self._probe()

    def on_response(self, broker_id: BrokerId) -> bool:
        """Note that a broker has answered; True: it was unresponsive and is used again."""
        self._missed.pop(broker_id, None)
        if broker_id not in self._context.unresponsive_broker_ids:
            return False
        self._context.unresponsive_broker_ids.discard(broker_id)
        self._services.outbox.note("broker %d: answers again", broker_id)
        self._log.warning("broker %d answers again and is used again", broker_id)
        self._shutdowns.use_again(broker_id)
        return True

    def _is_in_use(self, broker_id: BrokerId) -> bool:
        return broker_id not in self._context.shutting_down_broker_ids

    def _relieve(self, broker_ids: list[BrokerId]) -> None:
        """Move everything off these brokers; none of them takes over from another one."""
        for broker_id in broker_ids:
            self._log.error(
                "broker %d has not answered for %d ms: its leaderships are moved",
                broker_id,
                self._services.settings.broker_answer_timeout_ms,
            )
            self._services.outbox.note("broker %d: does not answer", broker_id)
        self._context.unresponsive_broker_ids.update(broker_ids)
        self._context.shutting_down_broker_ids.update(broker_ids)
        for broker_id in broker_ids:
            self._shutdowns.relieve(broker_id)

    def _probe(self) -> None:
        epoch = self._context.epoch
        for broker_id, registration in sorted(self._context.registrations.items()):
            if self._missed.get(broker_id, 0) <= LOOKS:  # else it has requests to answer
                header = ControlHeader(
                    self._services.broker_id,
                    epoch,
                    registration.broker_epoch,
                    event_id=self._context.event_id,
                    broker_id=broker_id,
                )
                self._services.outbox.add(SendControlRequest(broker_id, header, _PROBE))
        after_ms = max(self._services.settings.broker_answer_timeout_ms // LOOKS, 1)
        self._services.schedule(after_ms, CheckBrokers(epoch))
