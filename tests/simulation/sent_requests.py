"""Check what controllers send to brokers: each thing once an event, in small enough requests."""

from __future__ import annotations

from regent.core.controller.effects import SendControlRequest
from regent.core.controller.events import (
    BrokerChange,
    ControlledShutdown,
    ControllerFailuresChange,
    EventsLost,
    LookAgain,
    ReadAgain,
)
from regent.core.controller.request_batch import REPLICA_BYTES, ROW_BYTES
from regent.core.model import LEADER_DURING_DELETE, TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest, StopReplicaRequest
from tests.simulation.broker import SimulatedBroker
from tests.simulation.channel import Channel
from tests.simulation.leadership_history import LeadershipHistory

# A new broker gets the full state, its own replicas, and all partitions of brokers that left.
MAX_REPEATS = 3
READS_EVERYTHING = LookAgain | EventsLost | ReadAgain | ControllerFailuresChange


class SentRequests:
    """Checks every control request of a controller; raises ``AssertionError``."""

    def __init__(self, history: LeadershipHistory) -> None:
        self._history = history
        self._event: tuple[SimulatedBroker, int] | None = None  # being handled: controller, number
        self._sent: list[SendControlRequest] = []  # during this event
        # During this event: channel to the broker, partition, and whether to delete the log.
        self._stopped: set[tuple[Channel | None, TopicPartition, bool]] = set()

    def on_control_request(self, sender: SimulatedBroker, sent: SendControlRequest) -> None:
        """Check a control request before it is queued."""
        event = sender, sender.handled_events
        if event != self._event:
            self._event, self._sent, self._stopped = event, [], set()
        where = f"broker {sender.broker_id} sends {sent.broker_id} {sent.request}"
        reads_everything = isinstance(sender.event, READS_EVERYTHING)
        if not (reads_everything and isinstance(sent.request, StopReplicaRequest)):
            self._check_once(sender, sent, where)
        self._sent.append(sent)
        if not sender.is_of_kafka:  # the model of Kafka's controller splits nothing
            self._check_size(sender, sent, where)
        self._check_leader(sender, sent, where)

    def _check_once(self, sender: SimulatedBroker, sent: SendControlRequest, where: str) -> None:
        """No replica is stopped twice; a new broker may get the state of others twice.

        A channel that is opened again, to a new address, drops the requests that were queued in the
        former one. When everything is read again, a broker and a topic that are gone may both cause
        a request.
        """
        if isinstance(sent.request, StopReplicaRequest):
            channel = sender.channels.get(sent.broker_id)
            stopped = {
                (channel, name, row.delete_partition) for name, row in sent.request.partitions()
            }
            assert not stopped & self._stopped, f"StoppedOnce: {where}"
            self._stopped |= stopped
        elif not (_has_work(sender) or _concerns_a_deletion(sent)) and any(
            sent.request.partitions()
        ):
            assert self._sent.count(sent) < MAX_REPEATS, f"SentOnce: {where}"

    def _check_size(self, sender: SimulatedBroker, sent: SendControlRequest, where: str) -> None:
        receiver = sender.controller.context.registrations.get(sent.broker_id)
        is_to_kafka = receiver is not None and receiver.info.is_of_kafka
        if is_to_kafka and isinstance(sent.request, LeaderAndIsrRequest):
            return
        limit = sender.settings.max_request_bytes
        sizes = [
            ROW_BYTES + REPLICA_BYTES * len(getattr(row, "replicas", ()))
            for _, row in sent.request.partitions()
        ]
        assert len(sizes) <= 1 or sum(sizes) <= limit, f"RequestsFit: {len(sizes)} rows: {where}"

    def _check_leader(self, sender: SimulatedBroker, sent: SendControlRequest, where: str) -> None:
        """A leader that may have lost records is not sent the same leadership again."""
        if not isinstance(sent.request, LeaderAndIsrRequest):
            return
        context, receiver = sender.controller.context, sent.broker_id
        registration = context.registrations.get(receiver)
        broker_epoch = -1 if registration is None else registration.broker_epoch
        self._history.check()
        for name, row in sent.request.partitions():
            now = self._history.current.get(name)
            if row.leader != receiver or now is None or now.leader_epoch != row.leader_epoch:
                continue
            is_elected = self._history.elected_zxids[name] > broker_epoch
            is_sound = context.suspect_end(receiver, name) is None
            is_kept = not context.is_topic_queued_for_deletion(name.topic)
            assert is_elected or is_sound or not is_kept, f"LeadsOnThoughSuspect: {name}: {where}"


def _has_work(sender: SimulatedBroker) -> bool:
    """Whether the event includes other work than brokers that come and go: a move, a deletion."""
    context = sender.controller.context
    is_of_brokers = isinstance(sender.event, BrokerChange | ControlledShutdown)
    return not is_of_brokers or bool(
        context.partitions_being_reassigned or context.topics_to_be_deleted
    )


def _concerns_a_deletion(sent: SendControlRequest) -> bool:
    """Whether a topic of the request was queued for deletion when it was created."""
    rows = [row for _, row in sent.request.partitions()]
    return any(getattr(row, "leader", None) == LEADER_DURING_DELETE for row in rows)
