"""Decides which control requests a broker carries out.

A request may be repeated, late, meant for another broker, or from a controller that was replaced
and does not know it yet. It may also be no controller's at all. These checks refuse it:

* ``broker_id``: the address of another broker may lead here, by a wrong setting or because it was
  reused.
* ``broker_epoch``: a request for an earlier registration of this broker (KIP-380).
* ``controller_epoch`` and ``controller_id``: a request of an earlier controller (KAFKA-1188).
* ``sequence``: a late copy of a request that was followed by others of its kind. UpdateMetadata is
  one kind, LeaderAndIsr and StopReplica are the other: see ``may_be_unanswered_together``.

A controller, and a broker epoch, that the broker does not know yet are believed only after
ZooKeeper has confirmed them. Otherwise one false message with the highest controller epoch would
make the broker refuse every controller for good.
"""

from __future__ import annotations

from regent.core.errors import Errors, RegentError
from regent.core.model import NO_CONTROLLER, UNKNOWN_BROKER_EPOCH, BrokerId
from regent.core.ports import ControlFacts
from regent.core.protocol.control import ControlHeader
from regent.core.replica_logs import ReplicaLogs


class ControlRequestRefusedError(RegentError):
    """A control request that is not answered: its sender must repeat it.

    An answer would count as one of the broker that the request is for.
    """

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class ControlRequestFence:
    """What a broker knows of its registration and of the controller. Not thread-safe.

    ``refuse`` and ``is_heard`` may be called on any thread.
    """

    def __init__(self, broker_id: BrokerId, logs: ReplicaLogs) -> None:
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.controller_epoch = logs.seen.controller_epoch  # the highest, also before a restart
        self._controller_id: BrokerId | None = None  # the controller of that epoch
        self._heard: tuple[BrokerId, int, int] | None = None  # whose header was admitted last
        # Of the newest request of that controller, by whether it is an UpdateMetadata.
        self._sequences = {False: 0, True: 0}
        self._broker_id = broker_id
        self._logs = logs

    def on_registered(self, broker_epoch: int) -> None:
        """Note the broker epoch of our registration."""
        self.broker_epoch = broker_epoch
        self._logs.note_seen(zxid=broker_epoch)

    def admit(
        self, header: ControlHeader, facts: ControlFacts | None, *, is_metadata: bool
    ) -> bool:
        """Whether to handle a request now; False: ask again with what ZooKeeper says about it.

        Raises ``ControlRequestRefusedError``. A request that ``refuse`` refuses is admitted: it is
        answered with that error.
        """
        if header.broker_id != self._broker_id:
            raise ControlRequestRefusedError(
                Errors.BROKER_ID_NOT_REGISTERED,
                f"broker {self._broker_id} answers at the address of broker {header.broker_id}",
            )
        if not self._is_news(header) or self.refuse(header, is_metadata=is_metadata):
            return True
        if facts is None:
            return False
        if facts.broker_epoch > self.broker_epoch:
            self.on_registered(facts.broker_epoch)
        if not facts.confirm(header):
            raise ControlRequestRefusedError(Errors.NOT_CONTROLLER, _why_not(header, facts))
        return True

    def refuse(self, header: ControlHeader, *, is_metadata: bool | None = None) -> Errors:
        """Return why a request is stale, or NONE. ``is_metadata`` None: it is not decoded yet."""
        if header.broker_epoch < self.broker_epoch:
            return Errors.STALE_BROKER_EPOCH
        if self.is_deposed(header):
            return Errors.STALE_CONTROLLER_EPOCH
        if is_metadata is None or header.controller_epoch > self.controller_epoch:
            return Errors.NONE
        is_late_copy = 0 < header.sequence < self._sequences[is_metadata]
        return Errors.STALE_CONTROLLER_EPOCH if is_late_copy else Errors.NONE

    def note_heard(self, header: ControlHeader) -> None:
        """Note that ``admit`` has admitted a header, whose request may not have been read yet."""
        self._heard = _named(header)

    def is_heard(self, header: ControlHeader) -> bool:
        """Whether the sender is known to be the controller, so that its request may be read.

        Thread-safe.
        """
        return _named(header) == self._heard or not self._is_news(header)

    def is_deposed(self, header: ControlHeader) -> bool:
        """Whether another controller sent requests in this controller epoch or a later one.

        In the same epoch this happens only if ``/controller_epoch`` was set back by hand.
        """
        is_another = self._controller_id not in (None, header.controller_id)
        return header.controller_epoch < self.controller_epoch + is_another

    def note(self, header: ControlHeader, *, is_metadata: bool) -> None:
        """Note the controller of a request before it is carried out; a new epoch durably."""
        self._controller_id = header.controller_id
        epoch = header.controller_epoch
        if epoch > self.controller_epoch:
            self.controller_epoch = epoch
            self._sequences = {False: 0, True: 0}
            self._logs.note_seen(controller_epoch=epoch)
        self._sequences[is_metadata] = header.sequence or self._sequences[is_metadata]

    def _is_news(self, header: ControlHeader) -> bool:
        known = self._controller_id, self.controller_epoch, self.broker_epoch
        return known != _named(header)


def _named(header: ControlHeader) -> tuple[BrokerId, int, int]:
    return header.controller_id, header.controller_epoch, header.broker_epoch


def _why_not(header: ControlHeader, facts: ControlFacts) -> str:
    if (facts.controller_id, facts.controller_epoch) == (
        header.controller_id,
        header.controller_epoch,
    ):
        return (
            f"the request is for broker epoch {header.broker_epoch}; ZooKeeper has broker epoch"
            f" {facts.broker_epoch}"
        )
    holder = (
        "no controller" if facts.controller_id == NO_CONTROLLER else f"broker {facts.controller_id}"
    )
    return (
        f"the request is of broker {header.controller_id} with controller epoch"
        f" {header.controller_epoch}; ZooKeeper has {holder} with epoch {facts.controller_epoch}"
    )
