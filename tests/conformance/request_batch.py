"""The requests of one batch and the events of their answers: ControllerChannelManagerTest.

Older versions of the inter-broker protocol do not exist here. A case of an older version with more
than one request of a kind (StopReplica before version 3) gets one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from regent.core.controller.brokers.responses import response_event
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.events import (
    LeaderAndIsrResponseReceived,
    TopicDeletionStopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.states import ReplicaState
from regent.core.errors import Errors
from regent.core.model import BrokerId, LeaderAndIsr, PartitionAndReplica, TopicPartition
from regent.core.model import LeaderIsrAndControllerEpoch as Leadership
from regent.core.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    assert_leadership,
    leadership,
    one_of,
    partition,
)
from tests.support.controller_parts import (
    ControllerParts,
    leader_and_isr_rows,
    metadata_rows,
    stop_replica_rows,
)
from tests.support.world import topic_id as numbered_id

KINDS: Mapping[str, type] = {
    "LeaderAndIsr": LeaderAndIsrRequest,
    "UpdateMetadata": UpdateMetadataRequest,
    "StopReplica": StopReplicaRequest,
}
_REST_OF_VERSION = r"(?:\.\d+)?(?:-iv\d+)?"
_ERRORS = {error.name: error for error in Errors}


class Channel:
    """A controller's term, and the requests of its batches."""

    def __init__(self, context: Fields, given: Fields) -> None:
        self.brokers: list[BrokerId] = context.take("brokers", [1, 2, 3])
        factor = context.take("rf", 3)
        self.parts = ControllerParts(self.brokers)
        known = self.parts.context
        known.epoch = context.take("controller_epoch", 1)
        self.controller_id: BrokerId = context.take("controller_id", 1)
        for number, (topic, count) in enumerate(
            context.take("topics", {"foo": 2, "bar": 2}).items(), 1
        ):
            known.add_topic_id(topic, numbered_id(number))
            for index in range(count):
                ring = [*self.brokers, *self.brokers][index % len(self.brokers) :]
                replicas = tuple(ring[:factor])
                self.parts.assign(TopicPartition(topic, index), replicas)
        self._topics = set(known.all_topics)
        self._give(given)
        self.sent: list[SendControlRequest] = []

    def _give(self, given: Fields) -> None:
        known = self.parts.context
        for name, state in given.take("leadership", {}).items():
            known.put_partition_leadership_info(partition(name), leadership(state, known.epoch))
        for name, leader in given.take("leaders", {}).items():
            led = Leadership(LeaderAndIsr(leader, (leader,)), known.epoch)
            known.put_partition_leadership_info(partition(name), led)
        known.shutting_down_broker_ids |= set(given.take("shutting_down", []))
        for broker_id in given.take("dead", []):
            known.remove_live_broker(broker_id)
        queued, started = given.take("queued_for_deletion", []), given.take("deletion_started", [])
        if not {*queued, *started} <= self._topics:
            raise UnknownInCaseError(f"the deletion of {sorted({*queued, *started})}")
        known.queue_topic_deletion(queued)
        for topic in started:
            known.topics_with_deletion_started.add(topic)
            for replica in known.replicas_of(known.partitions_of(topic)):
                known.put_replica_state(replica, ReplicaState.DELETION_STARTED)

    def call(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Fill batches and flush them."""
        batch = ControlRequestBatch(self.controller_id, self.parts.context)
        for call in calls:
            with Fields(call, "call") as fields:
                if "flush" in fields:
                    if fields.take("flush") not in (1, True):
                        raise UnknownInCaseError("a flush is flushed once")
                    self.sent += batch.effects()
                    batch = ControlRequestBatch(self.controller_id, self.parts.context)
                else:
                    self._add(batch, fields)
        assert batch.effects() == [], "the last call is a flush"

    def _add(self, batch: ControlRequestBatch, fields: Fields) -> None:
        kind, to = fields.take("add"), fields.take("to")
        topic_partitions = [partition(name) for name in fields.take("partitions", [])]
        known = self.parts.context
        there = set(known.all_partitions())
        if not set(topic_partitions) <= there or not set(to) <= set(self.brokers):
            raise UnknownInCaseError(
                f"{kind} of {topic_partitions} to {to}: not all of them are there"
            )
        match kind:
            case "LeaderAndIsr":
                is_new = fields.take("is_new", False)
                for name in topic_partitions:
                    assert known.partition_leadership_info(name), f"{name} has no leadership"
                    batch.add_leader_and_isr(to, [name], is_new=is_new)
            case "StopReplica":
                delete = fields.take("delete")
                for broker_id in to:
                    for name in topic_partitions:
                        batch.add_stop_replica(broker_id, [name], delete=delete)
            case "UpdateMetadata":
                batch.add_update_metadata(topic_partitions, to)
            case unknown:
                raise UnknownInCaseError(f"add {unknown}")

    def counts(self, broker_id: BrokerId) -> dict[str, int]:
        """Return how many requests of each kind a broker got."""
        requests = [sent.request for sent in self.sent if sent.broker_id == broker_id]
        counted = {
            name: sum(isinstance(request, kind) for request in requests)
            for name, kind in KINDS.items()
        }
        return {name: count for name, count in counted.items() if count}

    def of_kind(self, name: str) -> list[SendControlRequest]:
        """Return the requests of one kind."""
        return [sent for sent in self.sent if isinstance(sent.request, KINDS[name])]

    # --- answers ---

    def answer(self, sent: SendControlRequest, error: Errors = Errors.NONE) -> object | None:
        """Answer a request; return the controller's event for it, if any."""
        request = sent.request
        response: LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse
        if isinstance(request, UpdateMetadataRequest):
            response = UpdateMetadataResponse(error)
        else:
            errors = tuple(
                PartitionError(*topic_partition, error)
                for topic_partition, _ in request.partitions()
            )
            if isinstance(request, LeaderAndIsrRequest):
                response = LeaderAndIsrResponse(error, errors)
            else:
                response = StopReplicaResponse(error, errors)
        event = response_event(sent.broker_id, sent.header, request, response)
        if isinstance(event, TopicDeletionStopReplicaResponseReceived):
            return event if self._deleted_by(event) else None
        return event

    def _deleted_by(self, event: TopicDeletionStopReplicaResponseReceived) -> list[TopicPartition]:
        """Return the pending replica deletions, for the topic deletion."""
        topic_partitions = [error.topic_partition for error in event.response.partition_errors]
        return [
            topic_partition
            for topic_partition in topic_partitions
            if self._is_being_deleted(topic_partition, event.broker_id)
        ]

    def _is_being_deleted(self, topic_partition: TopicPartition, broker_id: BrokerId) -> bool:
        state = self.parts.context.replica_state(PartitionAndReplica(topic_partition, broker_id))
        return state is ReplicaState.DELETION_STARTED

    def partitions_of(self, event: object) -> list[TopicPartition]:
        """Return the partitions of an event."""
        if isinstance(event, LeaderAndIsrResponseReceived):
            return [error.topic_partition for error in event.response.partition_errors]
        assert isinstance(event, TopicDeletionStopReplicaResponseReceived)
        return self._deleted_by(event)


def request_batch(case: Case) -> None:
    with case.nested("context") as context, case.nested("given") as given:
        is_old = _is_of_the_past(given.take("ibp", "every"))
        channel = Channel(context, given)
    calls = case.take("calls")
    channel.call(calls)
    with case.nested("expect") as expect:
        if is_old:
            _assert_newest(channel, calls, expect)
            return
        _assert_receivers(channel, expect)
        _assert_content(channel, expect)
        _assert_answers(channel, expect)


def _assert_newest(channel: Channel, calls: Iterable[Mapping[str, Any]], expect: Fields) -> None:
    """One request of a kind has all rows; older versions needed one for each ``delete``."""
    asked = [c for c in calls if c.get("add") == "StopReplica"]
    deletes = {c["delete"] for c in asked}
    for broker_id, expected in expect.matching("to_broker_"):
        counts = channel.counts(int(broker_id))
        assert counts == dict.fromkeys(expected, 1)
        with Fields(expected, f"to_broker_{broker_id}") as kinds:
            for kind in KINDS:
                for count in kinds.expected(kind):
                    assert count == (len(deletes) if kind == "StopReplica" else 1)
    for order in expect.expected("send_order"):
        wanted = [f"delete={str(delete).lower()}" for delete in sorted(deletes, reverse=True)]
        assert order == wanted, "deletions first"
    stopped = _merged(stop_replica_rows(channel.sent))
    rows = {partition(name): c["delete"] for c in asked for name in c["partitions"]}
    assert {name: row.delete_partition for name, row in stopped.items()} == rows


def _is_of_the_past(version: Any) -> bool:
    """Whether a case is about older versions of the protocol."""
    said = re.fullmatch(
        r"(every|any|all|newest|latest)|(<|<=|>=|>|before|old|older|since)? ?"
        rf"(?:(\d+)\.(\d+){_REST_OF_VERSION})?"
        rf"(?: ?(?:-|to|until|\.\.|<) ?\d+\.\d+{_REST_OF_VERSION})?",
        str(version).lower(),
    )
    if said is None or not str(version):
        raise UnknownInCaseError(f"ibp {version!r}")
    if said[1] is not None or said[2] in (">", ">=", "since"):
        return False
    is_before = said[2] is not None
    return is_before or (said[3] is not None and (int(said[3]), int(said[4])) < (2, 6))


def _assert_receivers(channel: Channel, expect: Fields) -> None:
    for broker_id, counts in expect.matching("to_broker_"):
        assert channel.counts(int(broker_id)) == counts
    contacted = sorted({sent.broker_id for sent in channel.sent})
    for brokers in expect.expected("brokers_contacted"):
        assert contacted == sorted(brokers)
    for counts in expect.expected("per_broker"):
        assert all(channel.counts(broker_id) == counts for broker_id in contacted)
    for brokers in expect.expected("update_metadata_to"):
        receivers = sorted(sent.broker_id for sent in channel.of_kind("UpdateMetadata"))
        assert receivers == sorted(brokers)
    for order in expect.expected("send_order"):
        sent = [_kind(request) for request in channel.sent]
        assert list(dict.fromkeys(sent)) == [_named_kind(name) for name in order]
    for header in expect.expected("header"):
        for sent_header in {effect.header for effect in channel.sent}:
            assert {key: getattr(sent_header, key) for key in header} == header


def _kind(sent: SendControlRequest) -> str:
    return type(sent.request).__name__.removesuffix("Request")


def _named_kind(name: Any) -> str:
    return str(one_of(name, {kind: kind for kind in KINDS}, "a kind of request"))


def _assert_content(channel: Channel, expect: Fields) -> None:
    led = _merged(leader_and_isr_rows(channel.sent))
    metadata = _merged(metadata_rows(channel.sent))
    stopped = _merged(stop_replica_rows(channel.sent))
    for rows in expect.expected("leader_and_isr_partitions"):
        assert set(led) == set(map(partition, rows))
        for name, row in rows.items():
            assert_leadership(_led(led[partition(name)]), row)
    for flags in expect.expected("is_new"):
        assert {name: led[partition(name)].is_new for name in flags} == flags
    for leaders in expect.expected("leaders"):
        assert {name: metadata[partition(name)].leader for name in leaders} == leaders
    for unchanged in expect.expected("isr_unchanged"):
        assert unchanged is True
        for name, row in metadata.items():
            known = channel.parts.context.partition_leadership_info(name)
            assert known is not None
            assert row.isr == known.leader_and_isr.isr
    for epochs in expect.expected("leader_epoch_if_v3"):
        assert {name: stopped[partition(name)].leader_epoch for name in epochs} == epochs
    for states in expect.expected("states"):
        for name, state in states.items():
            with Fields(state, "state") as fields:
                row = stopped[partition(name)]
                assert row.delete_partition is fields.take("delete", row.delete_partition)
                assert row.leader_epoch == fields.take("leader_epoch", row.leader_epoch)
    _assert_metadata(channel, metadata, expect)


def _assert_metadata(
    channel: Channel, metadata: Mapping[TopicPartition, Any], expect: Fields
) -> None:
    requests = [sent.request for sent in channel.of_kind("UpdateMetadata")]
    for rows in expect.expected("partition_states"):
        if isinstance(rows, int):
            assert len(metadata) == rows
        elif isinstance(rows, Mapping):
            assert set(metadata) == set(map(partition, rows))
            for name, row in rows.items():
                assert_leadership(_led(metadata[partition(name)]), row)
        else:
            assert set(metadata) == set(map(partition, rows))
    for topics in expect.expected("topic_states"):
        found = [
            state
            for request in requests[:1]
            if isinstance(request, UpdateMetadataRequest)
            for state in request.topic_states
        ]
        assert all(s.topic_id == channel.parts.context.topic_id(s.topic_name) for s in found)
        names = {state.topic_name for state in found}
        assert len(names) == topics if isinstance(topics, int) else names == set(topics)
    for brokers in expect.expected("live_brokers"):
        for request in requests:
            assert isinstance(request, UpdateMetadataRequest)
            assert sorted(b.broker_id for b in request.live_brokers) == sorted(brokers)


def _assert_answers(channel: Channel, expect: Fields) -> None:
    answered = [
        (sent, channel.answer(sent))
        for sent in channel.sent
        if not isinstance(sent.request, UpdateMetadataRequest)
    ]
    events = [event for _, event in answered if event is not None]
    for count in expect.expected("event_per_response"):
        assert len(events) == count * len(answered)
    for count in expect.expected("events_after_response"):
        assert len(events) == count
    for names in expect.expected("event_partitions"):
        told_of = {name for event in events for name in channel.partitions_of(event)}
        assert told_of == set(map(partition, names))
    for name in expect.expected("error_response_becomes_event"):
        error = _ERRORS["STALE_BROKER_EPOCH"] if name is True else one_of(name, _ERRORS, "error")
        for sent in channel.sent:
            event = channel.answer(sent, error)
            assert isinstance(event, UpdateMetadataResponseReceived | LeaderAndIsrResponseReceived)
            assert event.response.error_code is error


def _merged(
    by_broker: Mapping[BrokerId, Mapping[TopicPartition, Any]],
) -> dict[TopicPartition, Any]:
    return {
        topic_partition: row for rows in by_broker.values() for topic_partition, row in rows.items()
    }


def _led(row: Any) -> LeaderAndIsr:
    return LeaderAndIsr(row.leader, row.isr, row.leader_epoch, row.partition_epoch)
