"""The registration of this broker in ZooKeeper: its first one, its changes, and a renewal.

A controller of Kafka takes a replica for failed that refuses to lead, and does not use it again
before its broker registers again. So the broker does that; see ``BrokerRegistrar.renew``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from regent.core.controller.effects import BrokerMustEnd, BrokerRegistered
from regent.core.controller.events import (
    RegisterBrokerAndReelect,
    ReplicasGivenUp,
    SuspectReplicasChanged,
)
from regent.core.controller.services import ControllerServices
from regent.core.errors import ForeignDirectoryError, RegentError, SessionExpiredError
from regent.core.model import BrokerInfo, EndPoint, SuspectReplicas

COMPLAINT_INTERVAL_MS = 60_000
_MAX_DOUBLINGS = 7


class BrokerRegistrar:
    """Registers one broker; ``suspects`` returns its replicas that may have lost records.

    ``on_suspects_listed`` is called with those that ZooKeeper lists since a write of ``update``.
    """

    def __init__(
        self,
        services: ControllerServices,
        info: BrokerInfo,
        suspects: Callable[[], SuspectReplicas],
        on_suspects_listed: Callable[[SuspectReplicas], None],
    ) -> None:
        self.info = info
        self._services = services
        self._suspects = suspects
        self._on_suspects_listed = on_suspects_listed
        self._log = services.log(__name__)
        self._broker_epoch = -1
        self._renewals = 0
        self._renewed_ms = 0
        self._complaint = ("", 0)  # the last repeated error, and when it was logged

    def create(self, now_ms: int) -> bool:
        """Register and return whether that succeeded; if not, schedule another attempt."""
        try:
            broker_epoch = self._services.store.register_broker(self.info, self._suspects())
        except SessionExpiredError:
            raise
        except ForeignDirectoryError as error:
            self._services.outbox.add(BrokerMustEnd(error))
            return False
        except Exception as error:  # noqa: BLE001 - an unregistered broker cannot serve clients
            what = str(error) if isinstance(error, RegentError) else repr(error)
            self.complain(f"{what}; trying again", now_ms)
            retry_ms = self._services.settings.registration_retry_ms
            self._services.schedule(retry_ms, RegisterBrokerAndReelect())
            return False
        self._note(broker_epoch)
        return True

    def move(self, endpoints: tuple[EndPoint, ...]) -> None:
        """Register other endpoints in the same broker epoch."""
        self.info = replace(self.info, endpoints=endpoints)
        self.update()

    def update(self) -> None:
        """Write our endpoints and suspect replicas, if we are registered with others."""
        try:
            suspects = self._suspects()
            if self._services.store.publish_suspects(self.info, suspects):
                self._on_suspects_listed(suspects)
        except SessionExpiredError:
            raise  # the registration in the next session has them
        except RegentError as error:
            self._log.warning("%s; trying again", error)
            self._services.schedule(
                self._services.settings.registration_retry_ms, SuspectReplicasChanged()
            )

    def renew(self, broker_epoch: int, now_ms: int) -> None:
        """Begin a broker epoch after this one, if a controller of Kafka rules.

        Such a controller takes that for a restart: it elects leaders without this broker, and then
        uses its replicas again, in later leader epochs. A controller of this project needs none of
        that. Nothing happens if the broker has registered again since. The time between two
        renewals is limited, because each costs the broker its leaderships.
        """
        if broker_epoch < self._broker_epoch:
            return
        waited_ms = now_ms - self._renewed_ms
        if self._renewals and 0 <= waited_ms < self._interval_ms:
            again = ReplicasGivenUp(broker_epoch)
            self._services.schedule(self._interval_ms - waited_ms, again)
            return
        renewed = self._services.store.renew_registration(self.info.broker_id)
        if renewed is None:
            return
        self._renewals = min(self._renewals + 1, _MAX_DOUBLINGS)
        self._renewed_ms = now_ms
        self._log.warning(
            "registered again: the controller, a broker of Kafka, takes replicas of this broker for"
            " failed, because they have refused to lead with logs that may have lost records"
        )
        self._note(renewed)

    @property
    def _interval_ms(self) -> int:
        shortest: int = self._services.settings.registration_renewal_ms
        return shortest << max(self._renewals - 1, 0)

    def complain(self, what: str, now_ms: int) -> None:
        """Log a repeated error: the first time, and then once a minute."""
        said, when_ms = self._complaint
        if what != said or not 0 <= now_ms - when_ms < COMPLAINT_INTERVAL_MS:
            self._complaint = what, now_ms
            self._log.error("%s", what)

    def _note(self, broker_epoch: int) -> None:
        self._broker_epoch = broker_epoch
        self._services.outbox.add(BrokerRegistered(broker_epoch))
        self._services.outbox.note("broker %d: epoch %d", self.info.broker_id, broker_epoch)
