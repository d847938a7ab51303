"""A coarse model of Kafka's controller: the acts of it that can lose records or stop an election.

It is elected without a term, elects from the ISR, removes dead brokers from ISRs, answers
AlterPartition and ControlledShutdown, and tells brokers in Kafka's protocol. It knows of no suspect
and of no eligible leader replicas. It creates, deletes and moves nothing: that waits for a
controller of this project. Mirrors ``kafka.controller.KafkaController``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from regent.core.controller import effects as fx
from regent.core.controller import events
from regent.core.controller.context import ControllerContext
from regent.core.controller.effects import error_response
from regent.core.errors import (
    BadDataError,
    ControllerMovedError,
    Errors,
    RegentError,
    SessionExpiredError,
)
from regent.core.model import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
    ControlledShutdownResponse,
)
from regent.zk.client.operations import Committed, Create, SetData
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.fenced_writes import apply
from regent.zk.znodes import ControllerEpochZNode, ControllerZNode

if TYPE_CHECKING:
    from tests.simulation.kafka_broker import KafkaBroker

REGISTER_AGAIN_MS = 500
_CHANGES = (
    events.BrokerChange,
    events.BrokerModifications,
    events.TopicChange,
    events.PartitionModifications,
    events.TopicDeletion,
    events.IsrChangeNotification,
    events.LogDirEventNotification,
)


class KafkaController:
    """Handles the events of one process, as ``Controller``; ``context`` is always empty."""

    is_active = False  # as a controller of this project

    def __init__(self, broker: KafkaBroker, store: ZkControllerStore) -> None:
        self._broker = broker
        self._store = store
        self.context = ControllerContext()
        self._effects: list[fx.Effect] = []
        self._forget()

    def _forget(self) -> None:
        self.epoch = self._zk_version = 0
        self._brokers: dict[BrokerId, BrokerRegistration] = {}
        self._leaving: set[BrokerId] = set()
        self._offline: dict[BrokerId, set[TopicPartition]] = {}
        self._topic_ids: dict[str, str] = {}
        self._assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self._being_deleted: set[str] = set()
        self._states: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}

    @property
    def rules(self) -> bool:
        """Whether it was elected, as far as it knows."""
        return self.epoch > 0

    def handle(self, event: events.ControllerEvent, now_ms: int) -> list[fx.Effect]:
        """Handle an event; return its effects."""
        self._effects = []
        try:
            self._dispatch(event, now_ms)
        except (ControllerMovedError, SessionExpiredError):
            self._resign()
            self._refuse(event)
        except RegentError:  # as an exception that Kafka does not expect: it gives the term up
            self._give_up()
            self._refuse(event)
        return self._effects

    def _dispatch(  # noqa: C901 - one case for each event
        self, event: events.ControllerEvent, now_ms: int
    ) -> None:
        match event:
            case events.RegisterBrokerAndReelect() | events.RegistrationDeleted():
                self._register()
                self._stand(now_ms)
            case events.Reelect() | events.ControllerChange() | events.StandAgain():
                holder = self._store.read_controller()
                if self.rules and not (holder is not None and holder.is_own_session):
                    self._resign()
                if not self.rules:
                    self._stand(now_ms)
            case events.Expire():
                self._resign()
            case events.Resign() if self.rules:
                self._give_up()
            case events.AlterPartitionReceived(request_id, request) if self.rules:
                answer = self._altered(request)
                self._effects.append(fx.SendResponse(request_id, answer))
            case events.ControlledShutdown(request_id, broker_id, epoch) if self.rules:
                stopped = self._relieve(broker_id, epoch)
                self._effects.append(fx.SendResponse(request_id, stopped))
            case events.LeaderAndIsrResponseReceived() if self.rules:
                self._note_offline(event)
            case _ if self.rules and isinstance(event, _CHANGES):
                self._react()
            case _:
                self._refuse(event)

    def _refuse(self, event: events.ControllerEvent) -> None:
        refused = error_response(event)
        answered = {e.request_id for e in self._effects if isinstance(e, fx.SendResponse)}
        if refused is not None and refused.request_id not in answered:
            self._effects.append(refused)

    # --- election ---

    def _register(self) -> None:
        try:
            epoch = self._store.register_broker(self._broker.info)
        except SessionExpiredError:
            raise
        except RegentError:  # its former session lingers
            again = events.RegisterBrokerAndReelect()
            self._effects.append(fx.ScheduleEvent(REGISTER_AGAIN_MS, again))
            return
        self._effects.append(fx.BrokerRegistered(epoch))

    def _stand(self, now_ms: int) -> None:
        if self._store.read_controller() is not None or not self._broker.world.kafka_may_rule:
            return
        current = self._store.read_controller_epoch()
        if current is None:
            self._store.create_controller_epoch()
            current = self._store.read_controller_epoch()
        assert current is not None
        held = {
            "version": 2,
            "brokerid": self._broker.broker_id,
            "timestamp": str(now_ms),
            "kraftControllerEpoch": -1,
        }
        epoch = current.epoch + 1
        result = apply(
            self._broker.session,
            [
                Create(ControllerZNode.PATH, orjson.dumps(held), ephemeral=True),
                SetData(
                    ControllerEpochZNode.PATH,
                    ControllerEpochZNode.encode(epoch),
                    current.zk_version,
                ),
            ],
        )
        holder, stored = self._store.read_controller(), self._store.read_controller_epoch()
        is_held = holder is not None and holder.is_own_session
        if not isinstance(result, Committed) and not is_held:
            return
        if stored is None or stored.epoch != epoch or not is_held:
            return
        self.epoch, self._zk_version = stored
        self._load()

    def _resign(self) -> None:
        self._effects += [fx.RemoveBroker(broker_id) for broker_id in self._brokers]
        self._forget()

    def _give_up(self) -> None:
        """Delete ``/controller``, so that another broker is elected."""
        version, ruled = self._zk_version, self.rules
        self._resign()
        if ruled:
            with suppress(RegentError):
                self._store.delete_controller(version)

    # --- what it knows ---

    def _read(self) -> None:
        """Read topics and states; raises ``BadDataError`` if one cannot be decoded."""
        topics = self._store.read_topics(self._store.read_topic_names())
        self._being_deleted = set(self._store.read_topics_to_delete())
        self._topic_ids, self._assignments = {}, {}
        for topic, stored in topics.items():
            if isinstance(stored, BadDataError):
                raise stored
            if stored.topic_id is not None:  # it waits for a controller that gives it an id
                self._topic_ids[topic] = stored.topic_id
                for number, assignment in stored.partitions.items():
                    self._assignments[TopicPartition(topic, number)] = assignment
        states, _ = self._store.read_partition_states_with_zxids(list(self._assignments))
        self._states = {}
        for name, state in states.items():
            if isinstance(state, BadDataError):
                raise state
            self._states[name] = state

    def _registered(self) -> dict[BrokerId, BrokerRegistration]:
        found = self._store.read_brokers()
        return {b: r for b, r in found.items() if isinstance(r, BrokerRegistration)}

    def _load(self) -> None:
        self._brokers = self._registered()
        self._effects += [fx.AddBroker(registration) for registration in self._brokers.values()]
        self._read()
        self._tell_metadata(self._brokers, ())
        self._elect(self._live())
        self._tell_everything(self._brokers)

    def _react(self) -> None:
        """Compare with what was known: brokers that came, went or are back, and new states."""
        present, known = self._registered(), self._brokers
        gone = {b for b in known if b not in present}
        bounced = {
            b for b, r in present.items() if b in known and known[b].broker_epoch != r.broker_epoch
        }
        started = bounced | (present.keys() - known.keys())
        self._effects += [fx.RemoveBroker(broker_id) for broker_id in sorted(gone | bounced)]
        self._effects += [fx.AddBroker(present[broker_id]) for broker_id in sorted(started)]
        self._leaving -= gone | bounced
        for broker_id in gone | bounced:
            self._offline.pop(broker_id, None)
        self._brokers, before = present, self._states
        self._read()
        changed = self._elect(self._live() - bounced) | self._elect(self._live())
        changed |= {name for name, state in self._states.items() if before.get(name) != state}
        self._tell_leaderships(changed)
        self._tell_metadata(present.keys() - started, changed)
        if started:
            self._tell_everything(started)

    def _live(self) -> set[BrokerId]:
        return self._brokers.keys() - self._leaving

    # --- leaderships ---

    def _elect(self, live: Collection[BrokerId]) -> set[TopicPartition]:
        """Write the leaderships that must change while only these brokers live."""
        new: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        changes: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
        unclean = self._store.read_unclean_leader_election(list(self._topic_ids))
        for name, assignment in self._assignments.items():
            if name.topic in self._being_deleted:
                continue
            usable = [
                r for r in assignment.replicas if r in live and name not in self._offline.get(r, ())
            ]
            state = self._states.get(name)
            if state is None:
                if usable:
                    first = LeaderAndIsr(usable[0], tuple(usable))
                    new[name] = LeaderIsrAndControllerEpoch(first, self.epoch)
                continue
            if self._leads_on(name, state.leader_and_isr, usable):
                continue
            is_unclean = unclean.get(name.topic) is True
            now = _elected(state.leader_and_isr, usable, is_unclean=is_unclean)
            if now != state.leader_and_isr:
                changes[name] = LeaderIsrAndControllerEpoch(now, self.epoch)
        written = dict(self._store.create_partition_states(new, self._zk_version, self._topic_ids))
        written |= self._store.update_partition_states(changes, self._zk_version)
        wanted = {**new, **changes}
        done = {name for name, version in written.items() if isinstance(version, int)}
        for name in done:
            self._note(name, wanted[name], written[name])
        return done

    def _leads_on(
        self, name: TopicPartition, now: LeaderAndIsr, usable: Collection[BrokerId]
    ) -> bool:
        """Whether a leader that asked to shut down stays: no other member of the ISR can lead."""
        has_asked = now.leader in self._leaving and name not in self._offline.get(now.leader, ())
        return has_asked and not set(usable) & set(now.isr)

    def _note(
        self, name: TopicPartition, state: LeaderIsrAndControllerEpoch, version: object
    ) -> None:
        assert isinstance(version, int)
        with_version = state.leader_and_isr._replace(partition_epoch=version)
        self._states[name] = state._replace(leader_and_isr=with_version)

    def _note_offline(self, event: events.LeaderAndIsrResponseReceived) -> None:
        """Take replicas for failed, or not any more; Kafka compares no broker epochs here."""
        rows = event.response.partition_errors
        known = self._offline.setdefault(event.broker_id, set())
        known -= {row.topic_partition for row in rows if row.error_code is Errors.NONE}
        failed = {
            row.topic_partition for row in rows if row.error_code is Errors.KAFKA_STORAGE_ERROR
        } - known
        if failed:
            known |= failed
            self._react()
            self._stop_failed(event.broker_id, failed & self.failed_replicas(event.broker_id))

    def failed_replicas(self, broker_id: BrokerId) -> set[TopicPartition]:
        """Return the replicas of a broker that it takes for failed."""
        return self._offline.get(broker_id, set()) & self._states.keys()

    def _stop_failed(self, broker_id: BrokerId, names: Collection[TopicPartition]) -> None:
        topics = tuple(
            StopReplicaTopic(
                name.topic,
                None,
                (
                    StopReplicaPartition(
                        name.partition,
                        self._states[name].leader_and_isr.leader_epoch,
                        delete_partition=False,
                    ),
                ),
            )
            for name in sorted(names)
        )
        if topics and broker_id in self._brokers:
            self._send(broker_id, StopReplicaRequest(topics))

    def _altered(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        sender = self._brokers.get(request.broker_id)
        if sender is None or sender.broker_epoch != request.broker_epoch:
            return AlterPartitionResponse(Errors.STALE_BROKER_EPOCH)
        rows = tuple(self._altered_row(request.broker_id, row) for row in request.partitions)
        done = {row.topic_partition for row in rows if row.error_code is Errors.NONE}
        self._tell_metadata(self._brokers, done)
        return AlterPartitionResponse(Errors.NONE, rows)

    def _altered_row(self, sender: BrokerId, row: AlterPartitionRow) -> AlteredPartition:
        names = {topic_id: topic for topic, topic_id in self._topic_ids.items()}
        if row.topic_id is not None:  # the name may be unknown to who read the request
            row = row._replace(topic=names.get(row.topic_id, row.topic))
        is_known = row.topic_id is None or row.topic_id in names
        name = TopicPartition(row.topic if is_known else "", row.partition)
        state = self._states.get(name)
        error: Errors | None = Errors.UNKNOWN_TOPIC_OR_PARTITION
        if state is not None:
            now = state.leader_and_isr
            error = self._objection(now, sender, row)
            if error is None and (set(now.isr), now.leader_recovery_state) != (
                set(row.new_isr),
                row.leader_recovery_state,
            ):
                error = self._write_isr(name, state, row)
            if error is None:
                now = self._states[name].leader_and_isr
                return AlteredPartition(
                    row.topic,
                    row.partition,
                    Errors.NONE,
                    now.leader,
                    now.leader_epoch,
                    now.isr,
                    int(now.leader_recovery_state),
                    now.partition_epoch,
                )
        assert error is not None
        return AlteredPartition(row.topic, row.partition, error)

    def _objection(
        self, now: LeaderAndIsr, sender: BrokerId, row: AlterPartitionRow
    ) -> Errors | None:
        if row.leader_epoch > now.leader_epoch or row.partition_epoch > now.partition_epoch:
            return Errors.NOT_CONTROLLER
        if row.leader_epoch < now.leader_epoch or sender != now.leader:
            return Errors.FENCED_LEADER_EPOCH
        is_done = set(row.new_isr) == set(now.isr)
        if row.partition_epoch < now.partition_epoch and not is_done:
            return Errors.INVALID_UPDATE_VERSION
        if row.leader_recovery_state and len(row.new_isr) > 1:
            return Errors.INVALID_REQUEST
        is_ineligible = any(
            member not in self._live() or epoch not in (-1, self._brokers[member].broker_epoch)
            for member, epoch in zip(row.new_isr, row.isr_broker_epochs, strict=True)
            if member != sender
        )
        return Errors.INELIGIBLE_REPLICA if is_ineligible and not is_done else None

    def _write_isr(
        self, name: TopicPartition, state: LeaderIsrAndControllerEpoch, row: AlterPartitionRow
    ) -> Errors | None:
        wanted = state.leader_and_isr._replace(
            isr=row.new_isr,
            leader_recovery_state=LeaderRecoveryState(row.leader_recovery_state),
            eligible_leader_replicas=(),
        )
        changed = LeaderIsrAndControllerEpoch(wanted, self.epoch)
        written = self._store.update_partition_states({name: changed}, self._zk_version)[name]
        if not isinstance(written, int):
            return Errors.INVALID_UPDATE_VERSION
        self._note(name, changed, written)
        return None

    def _relieve(self, broker_id: BrokerId, broker_epoch: int) -> ControlledShutdownResponse:
        registration = self._brokers.get(broker_id)
        if registration is None or broker_epoch < registration.broker_epoch:
            return ControlledShutdownResponse(Errors.STALE_BROKER_EPOCH)
        self._leaving.add(broker_id)
        changed = self._elect(self._live())
        self._tell_leaderships(changed)
        self._tell_metadata(self._brokers, changed)
        led = tuple(
            name
            for name, state in self._states.items()
            if state.leader_and_isr.leader == broker_id
            and len(self._assignments[name].replicas) > 1
            and name.topic not in self._being_deleted
        )
        return ControlledShutdownResponse(Errors.NONE, led)

    # --- what it tells ---

    def _send(self, broker_id: BrokerId, request: ControlRequest) -> None:
        header = ControlHeader(
            self._broker.broker_id,
            self.epoch,
            self._brokers[broker_id].broker_epoch,
            broker_id=broker_id,
        )
        self._effects.append(fx.SendControlRequest(broker_id, header, request))

    def _tell_everything(self, broker_ids: Iterable[BrokerId]) -> None:
        self._tell_leaderships(self._states, broker_ids)
        self._tell_metadata(broker_ids, self._states)

    def _tell_leaderships(
        self, names: Collection[TopicPartition], broker_ids: Iterable[BrokerId] | None = None
    ) -> None:
        for broker_id in sorted(self._brokers if broker_ids is None else broker_ids):
            rows: dict[str, list[LeaderAndIsrPartition]] = {}
            for name in sorted(names):
                is_failed = name in self._offline.get(broker_id, ())
                if broker_id in self._assignments[name].replicas and not is_failed:
                    rows.setdefault(name.topic, []).append(self._row(name))
            if rows:
                topics = tuple(
                    LeaderAndIsrTopic(topic, self._topic_ids[topic], tuple(of_topic))
                    for topic, of_topic in rows.items()
                )
                kind = LeaderAndIsrType.INCREMENTAL
                self._send(broker_id, LeaderAndIsrRequest(kind, topics, ()))

    def _row(self, name: TopicPartition) -> LeaderAndIsrPartition:
        state, assignment = self._states[name], self._assignments[name]
        now = state.leader_and_isr
        return LeaderAndIsrPartition(
            name.partition,
            state.controller_epoch,
            now.leader,
            now.leader_epoch,
            now.isr,
            now.partition_epoch,
            assignment.replicas,
            assignment.adding_replicas,
            assignment.removing_replicas,
            now.partition_epoch == 0 and state.controller_epoch == self.epoch,
            int(now.leader_recovery_state),
        )

    def _tell_metadata(
        self, broker_ids: Iterable[BrokerId], names: Iterable[TopicPartition]
    ) -> None:
        rows: dict[str, list[UpdateMetadataPartition]] = {}
        for name in sorted(names):
            state, replicas = self._states[name], self._assignments[name].replicas
            now = state.leader_and_isr
            is_deleted = name.topic in self._being_deleted
            row = UpdateMetadataPartition(
                name.partition,
                state.controller_epoch,
                LEADER_DURING_DELETE if is_deleted else now.leader,
                now.leader_epoch,
                now.isr,
                now.partition_epoch,
                replicas,
                tuple(r for r in replicas if r not in self._brokers),
            )
            rows.setdefault(name.topic, []).append(row)
        topics = tuple(
            UpdateMetadataTopic(topic, self._topic_ids[topic], tuple(of_topic))
            for topic, of_topic in rows.items()
        )
        request = UpdateMetadataRequest(topics, tuple(map(_live_broker, self._brokers.values())))
        for broker_id in sorted(broker_ids):
            self._send(broker_id, request)


def _elected(now: LeaderAndIsr, usable: list[BrokerId], *, is_unclean: bool) -> LeaderAndIsr:
    """Return the leadership after an election from the ISR; ``now`` if nothing changes."""
    members = [r for r in usable if r in now.isr]
    leader = now.leader
    if leader not in members:
        if members:
            leader = members[0]
        elif is_unclean and usable:
            return LeaderAndIsr(
                usable[0],
                (usable[0],),
                now.leader_epoch + 1,
                now.partition_epoch,
                LeaderRecoveryState.RECOVERING,
            )
        else:
            leader = NO_LEADER
    isr = tuple(r for r in now.isr if r in members) or now.isr[-1:]
    if (leader, isr) == (now.leader, now.isr):
        return now
    return LeaderAndIsr(
        leader, isr, now.leader_epoch + 1, now.partition_epoch, now.leader_recovery_state
    )


def _live_broker(registration: BrokerRegistration) -> UpdateMetadataBroker:
    info = registration.info
    endpoints = tuple(
        UpdateMetadataEndPoint(e.listener, e.host, e.port, e.security_protocol)
        for e in info.endpoints
    )
    return UpdateMetadataBroker(
        info.broker_id, registration.broker_epoch, endpoints, info.rack, None, None
    )
