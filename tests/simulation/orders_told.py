"""What controllers tell brokers: each thing once an event, in requests that are small enough."""

from __future__ import annotations

from regent.core.controller.effects import SendControlRequest
from regent.core.controller.events import (
    BrokerChange,
    ControlledShutdown,
    EventsLost,
    LookAgain,
    ReadAgain,
)
from regent.core.controller.request_batch import REPLICA_BYTES, ROW_BYTES
from regent.core.model import LEADER_DURING_DELETE, BrokerId, TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest, StopReplicaRequest
from tests.simulation.broker import SimulatedBroker
from tests.simulation.leadership_history import LeadershipHistory

# A broker that came: with all it must know, with all it hosts, and with all others of who went.
MOST_TOLD = 3


class OrdersTold:
    """Hears of every order that a controller gives; raises ``AssertionError``."""

    def __init__(self, history: LeadershipHistory) -> None:
        self._history = history
        self._event: tuple[SimulatedBroker, int] | None = None  # that is handled, and by whom
        self._told: list[SendControlRequest] = []  # because of it
        # Because of it as well: where, which, and whether to delete it.
        self._stopped: set[tuple[BrokerId, TopicPartition, bool]] = set()

    def on_order(self, sender: SimulatedBroker, order: SendControlRequest) -> None:
        """Check an order before it is queued for its broker."""
        event = sender, sender.handled_events
        if event != self._event:
            self._event, self._told, self._stopped = event, [], set()
        where = f"broker {sender.broker_id} tells {order.broker_id} {order.request}"
        reads_everything = isinstance(sender.event, LookAgain | EventsLost | ReadAgain)
        self._check_once(
            order, where, has_work=_has_work(sender), reads_everything=reads_everything
        )
        self._told.append(order)
        self._check_size(sender, order, where)
        self._check_leader(sender, order, where)

    def _check_once(
        self, order: SendControlRequest, where: str, *, has_work: bool, reads_everything: bool
    ) -> None:
        """No replica is stopped twice; of who came or went a newcomer may hear again.

        When everything is read again, a broker and a topic that went may both be a reason.
        """
        if isinstance(order.request, StopReplicaRequest):
            if reads_everything:
                return
            stopped = {
                (order.broker_id, name, row.delete_partition)
                for name, row in order.request.partitions()
            }
            assert not stopped & self._stopped, f"StoppedOnce: {where}"
            self._stopped |= stopped
        elif not (has_work or _tells_of_a_deletion(order)) and any(order.request.partitions()):
            assert self._told.count(order) < MOST_TOLD, f"ToldOnce: {where}"

    def _check_size(self, sender: SimulatedBroker, order: SendControlRequest, where: str) -> None:
        limit = sender.settings.max_request_bytes
        sizes = [
            ROW_BYTES + REPLICA_BYTES * len(getattr(row, "replicas", ()))
            for _, row in order.request.partitions()
        ]
        assert len(sizes) <= 1 or sum(sizes) <= limit, f"RequestsFit: {len(sizes)} rows: {where}"

    def _check_leader(self, sender: SimulatedBroker, order: SendControlRequest, where: str) -> None:
        """Who may have lost records since it was elected is not told to lead on."""
        if not isinstance(order.request, LeaderAndIsrRequest):
            return
        context, receiver = sender.controller.context, order.broker_id
        registration = context.registrations.get(receiver)
        life = -1 if registration is None else registration.broker_epoch
        self._history.check()
        for name, row in order.request.partitions():
            now = self._history.current.get(name)
            if row.leader != receiver or now is None or now.leader_epoch != row.leader_epoch:
                continue
            is_elected = self._history.elected_zxids[name] > life
            is_sound = context.suspect_end(receiver, name) is None
            is_kept = not context.is_topic_queued_for_deletion(name.topic)
            assert is_elected or is_sound or not is_kept, f"LeadsOnThoughSuspect: {name}: {where}"


def _has_work(sender: SimulatedBroker) -> bool:
    """Whether more than brokers that come and go is seen to: a move, a deletion."""
    context = sender.controller.context
    is_of_brokers = isinstance(sender.event, BrokerChange | ControlledShutdown)
    return not is_of_brokers or bool(
        context.partitions_being_reassigned or context.topics_to_be_deleted
    )


def _tells_of_a_deletion(order: SendControlRequest) -> bool:
    """Whether a topic of it was to be deleted when it was made; by now it may be."""
    rows = [row for _, row in order.request.partitions()]
    return any(getattr(row, "leader", None) == LEADER_DURING_DELETE for row in rows)
