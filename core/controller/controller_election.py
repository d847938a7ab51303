"""Election of the controller: reading and taking ``/controller``.

Mirrors the election half of ``kafka.controller.KafkaController`` and
``KafkaZkClient.registerControllerAndIncrementControllerEpoch``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from regent.core.errors import BadDataError, ControllerMovedError
from regent.core.model import (
    HELD_BY_KRAFT,
    MAX_CONTROLLER_EPOCH,
    NO_CONTROLLER,
    NO_CONTROLLER_EPOCH_LEFT,
    BrokerId,
    BrokerInfo,
)
from regent.core.ports import ControllerEpoch, ControllerRegistration, ControllerStore

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3


class ControllerElection:
    """Stands for election, and knows the active controller of the last read of ``/controller``.

    ``accepted_epoch`` returns the highest controller epoch that this broker has accepted. A
    broker with ``no_replicas`` is there to rule: it takes the place of a controller of Kafka.
    """

    def __init__(
        self,
        broker_info: BrokerInfo,
        store: ControllerStore,
        accepted_epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._broker_id = broker_info.broker_id
        self._store = store
        self._takes_from_kafka = broker_info.no_replicas
        self._accepted_epoch = accepted_epoch
        self._won_epoch = 0  # the last one; our own broker may not know it yet
        self.active_controller_id: BrokerId = NO_CONTROLLER

    def holds_controller_znode(self) -> bool:
        """Read and watch ``/controller``; return whether our session holds it with our id."""
        controller = self._store.read_controller()
        self._note(controller)
        return (
            controller is not None
            and controller.is_own_session
            and controller.broker_id == self._broker_id
        )

    def check_in_force(self, epoch_zk_version: int) -> None:
        """Raise ``ControllerMovedError`` when ``/controller_epoch`` was written since our election.

        ZooKeeper refuses all our writes then, and brokers that start do not believe us.
        """
        stored = self._store.read_controller_epoch()
        if (
            stored is None
            or stored.zk_version != epoch_zk_version
            or not (self.holds_controller_znode())
        ):
            raise ControllerMovedError("our election is not in force any more")

    def read_active_controller(self) -> None:
        """Read the id of the active controller without trying to become it."""
        self._note(self._store.read_controller())

    def elect(self, now_ms: int) -> ControllerEpoch | None:
        """Try to become the controller; return None when another broker is the controller.

        Call it only while this broker is not the active controller: a ``/controller`` of our own
        session is then one whose creation had no answer, or whose data was overwritten. It is
        deleted (KAFKA-13407), because it would block every election until our session ends.

        A broker that takes the place of Kafka's controllers does so here. If several do, the first
        transaction wins, and the others leave a controller of Regent in its place.

        Raises ``BadDataError`` when a KRaft controller holds ``/controller``, when
        ``/controller_epoch`` cannot be decoded or raised, when brokers or topics cannot be listed,
        or when the controller's registration cannot be decoded, ``ForeignDirectoryError`` when
        ZooKeeper's data are not of our cluster, and ``ControllerMovedError`` when others change the
        znodes in each of ``MAX_ATTEMPTS`` attempts, or the controller is not registered.
        """
        for _ in range(MAX_ATTEMPTS):
            # Before /controller: while this version remains, no other controller was elected.
            seen = self._store.read_controller_epoch() if self._takes_from_kafka else None
            controller = self._store.read_controller()
            self._note(controller)
            won = None
            if controller is None:
                won = self._register(now_ms)
            elif controller.is_of_kraft:
                raise BadDataError(HELD_BY_KRAFT.format(controller.broker_id))
            elif controller.is_own_session or not controller.is_ephemeral:
                self._delete_unusable(controller)
            elif seen is None or not self._is_of_kafka(controller.broker_id):
                return None
            else:
                won = self._take_from_kafka(controller.broker_id, seen, now_ms)
            if won is not None:
                return won
        raise ControllerMovedError("/controller, /controller_epoch or the term keep changing")

    def take_over(self, controller: ControllerEpoch, now_ms: int) -> ControllerEpoch:
        """Become the controller in the place of the one with this epoch.

        One transaction takes ``/controller`` away and gives it to us, so that no third broker can
        be elected meanwhile. Raises as ``elect``, ``ControllerMovedError`` also when another
        election came before.
        """
        for _ in range(MAX_ATTEMPTS):
            holder = self._store.read_controller()
            self._note(holder)
            if holder is not None and holder.is_of_kraft:
                raise BadDataError(HELD_BY_KRAFT.format(holder.broker_id))
            if self._store.read_controller_epoch() != controller:
                break
            won = self._register(now_ms, controller, replaces=holder is not None)
            if won is not None:
                return won
        raise ControllerMovedError("another controller was elected meanwhile")

    def raise_epoch(self, above: int, epoch_zk_version: int) -> ControllerEpoch:
        """Raise our controller epoch, because a broker has accepted a higher one.

        Elections only raise ``/controller_epoch``, so it was set back or deleted by hand. Raises
        ``ControllerMovedError`` when another broker was elected, and ``BadDataError`` when there is
        no higher epoch.
        """
        _check_can_be_raised(above)
        log.warning(
            "[Controller id=%d] a broker has accepted another controller in our epoch or a higher"
            " one: /controller_epoch was set back; it is raised to %d",
            self._broker_id,
            above + 1,
        )
        raised = self._store.raise_controller_epoch(self._broker_id, above + 1, epoch_zk_version)
        self._won_epoch = raised.epoch
        return raised

    def reset(self) -> None:
        """Forget the active controller, because our session is over."""
        self.active_controller_id = NO_CONTROLLER

    def _is_of_kafka(self, broker_id: BrokerId) -> bool:
        registration = self._store.read_broker(broker_id)
        if isinstance(registration, BadDataError):
            raise registration
        if registration is None:
            raise ControllerMovedError(f"the controller {broker_id} is not registered")
        return registration.info.is_of_kafka

    def _take_from_kafka(
        self, broker_id: BrokerId, seen: ControllerEpoch, now_ms: int
    ) -> ControllerEpoch | None:
        won = self._register(now_ms, seen, replaces=True)
        if won is not None:
            log.info(
                "[Controller id=%d] taking the place of the controller %d, a broker of Kafka,"
                " because this broker has no_replicas: to give it back, stop this broker",
                self._broker_id,
                broker_id,
            )
        return won

    def _register(
        self, now_ms: int, current: ControllerEpoch | None = None, *, replaces: bool = False
    ) -> ControllerEpoch | None:
        """Write our election, if ``/controller_epoch`` is still ``current``; None: as it is now."""
        self._store.check_lists()  # a broker that could not load must not use up an epoch
        if current is None:
            current = self._store.read_controller_epoch()
        if current is None:
            self._store.create_controller_epoch()
            current = self._store.read_controller_epoch()
        if current is None:
            return None
        accepted = max(self._accepted_epoch(), self._won_epoch)
        _check_can_be_raised(max(current.epoch, accepted))
        won = self._store.register_controller(
            self._broker_id, current, now_ms, accepted_epoch=accepted, replaces=replaces
        )
        if won is not None:
            self._won_epoch = won.epoch
            self.active_controller_id = self._broker_id
        return won

    def _delete_unusable(self, controller: ControllerRegistration) -> None:
        log.warning(
            "[Controller id=%d] deleting /controller: it names %d, but %s",
            self._broker_id,
            controller.broker_id,
            "our session holds it and we are not the controller"
            if controller.is_own_session
            else "no session holds it",
        )
        current = self._store.read_controller_epoch()
        if current is None:
            self._store.create_controller_epoch()
            return
        try:
            self._store.delete_controller(current.zk_version)
        except ControllerMovedError:
            log.info("[Controller id=%d] another broker was elected since", self._broker_id)

    def _note(self, controller: ControllerRegistration | None) -> None:
        if controller is None or not controller.is_ephemeral:
            self.active_controller_id = NO_CONTROLLER
        elif controller.broker_id == self._broker_id and not controller.is_own_session:
            self.active_controller_id = NO_CONTROLLER  # an earlier session of ours, not yet expired
        else:
            self.active_controller_id = controller.broker_id


def _check_can_be_raised(epoch: int) -> None:
    """Raise ``BadDataError`` when there is no epoch above ``epoch``."""
    if epoch >= MAX_CONTROLLER_EPOCH:
        raise BadDataError(NO_CONTROLLER_EPOCH_LEFT)
