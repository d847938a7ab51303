"""Requests of leaders and admins to the controller: ISRs, elections, reassignments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from regent.core.controller.effects import SendResponse
from regent.core.controller.events import AlterPartitionReceived, ApiPartitionReassignment
from regent.core.errors import Errors
from regent.core.model import (
    BrokerId,
    LeaderAndIsr,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    check_words,
    is_called_unknown,
    one_of,
    partition,
)
from tests.support.controller_parts import Candidate, ControllerParts, of_type
from tests.support.world import World, topic_id

T0 = TopicPartition("t", 0)
_STATE_WORDS = (
    "same equal unchanged cached current new updated stored written proposed incremented +1"
    " leader epoch isr version zk_version state leader_and_isr partition"
)
ERRORS = Errors.__members__


# --- ISRs -----------------------------------------------------------------------------------------


def alter_isr_controller(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        if not given.take("active", True):
            request = AlterPartitionRequest(1, 1, (_row(LeaderAndIsr(1, (1, 2))),))
            answer = _ask_another_broker(AlterPartitionReceived(1, request))
            assert isinstance(answer, AlterPartitionResponse)
            assert answer.error_code.name == expect.take("top_level")
            return
        parts = _led_office(given)
        request = _proposal(parts, given)
        _disturb(parts, given)
        known = parts.context.partition_leadership_info(T0)
        before = None if known is None else known.leader_and_isr
        response, _ = parts.alter_partitions.alter(request)
        for error in expect.expected("top_level"):
            assert response.error_code.name == (error or "NONE")
        _assert_answer(parts, response, before, expect)


def _ask_another_broker(event: Any) -> Any:
    """Send the request to a broker that is not the active controller."""
    world = World()
    Candidate(world, 0).start()
    bystander = Candidate(world, 1)
    bystander.start()
    (reply,) = of_type(bystander.handle(event), SendResponse)
    return reply.response


def _led_office(given: Fields) -> ControllerParts:
    """A controller that knows t-0 on 1, 2, 3, led by 1, with ISR 1 and 2, in epoch 3."""
    parts = ControllerParts([0, 1, 2, 3])
    parts.assign(T0, (1, 2, 3))
    parts.context.add_topic_id(T0.topic, topic_id(7))
    cached = given.take("cached", {})
    if cached is None:
        return parts
    with Fields(cached, "cached") as fields:
        leader, isr = fields.take("leader", 1), tuple(fields.take("isr", (1, 2)))
        parts.lead(T0, (1, 2, 3), leader, isr)
        parts.put_state(T0, leader, isr, leader_epoch=fields.take("leader_epoch", 3))
    state = parts.state(T0)
    assert state is not None
    parts.context.put_partition_leadership_info(T0, state)
    return parts


def _relative(value: Any, base: int, word: str) -> int:
    """Return ``word``, ``word-1``, ``word+1`` or a number as a number."""
    if isinstance(value, int):
        return value
    text = str(value)
    for known in (word, "cached", "current", "registered"):
        if text.startswith(known):
            rest = text.removeprefix(known).replace(" ", "")
            if re.fullmatch(r"([+-]\d+)?", rest):
                return base + int(rest or 0)
    raise UnknownInCaseError(f"{value!r} is not relative to {word}")


def _row(now: LeaderAndIsr, **changes: Any) -> AlterPartitionRow:
    isr = tuple(changes.pop("isr", now.isr))
    row = AlterPartitionRow(
        *T0, topic_id(7), now.leader_epoch, isr, (-1,) * len(isr), 0, now.partition_epoch
    )
    return row._replace(**changes)


def _proposal(parts: ControllerParts, given: Fields) -> AlterPartitionRequest:
    state = parts.state(T0)
    now = LeaderAndIsr(1, (1, 2)) if state is None else state.leader_and_isr
    proposed = given.take("proposed", {})
    epoch = _relative(given.take("leader_epoch", "cached"), now.leader_epoch, "cached")
    if isinstance(proposed, str):
        changed: dict[str, Any] = {}
        if "same" not in proposed:
            raise UnknownInCaseError(f"proposed {proposed!r}")
        check_words(proposed, "proposed", _STATE_WORDS)
    elif isinstance(proposed, Mapping):
        with Fields(proposed, "proposed") as fields:
            changed = {"isr": fields.take("isr", (1, 2, 3))}
            epoch = fields.take("leader_epoch", epoch)
            changed["partition_epoch"] = fields.take("zk_version", now.partition_epoch)
            fields.take("leader", now.leader)
    else:
        changed = {"isr": proposed}
    row = _row(now, leader_epoch=epoch, **changed)
    broker = given.take("broker", "leader")
    known = {"leader": now.leader, "unknown": 99, "not registered": 99, "follower": 2}
    broker_id = broker if isinstance(broker, int) else one_of(broker, known, "the broker")
    registration = parts.context.registrations.get(broker_id)
    registered = registration.broker_epoch if registration else 1
    names = {"stale": registered - 1, "other": registered + 1, "newer": registered + 1}
    wanted = given.take("broker_epoch", "current")
    broker_epoch = names.get(wanted) or _relative(wanted, registered, "current")
    return AlterPartitionRequest(broker_id, broker_epoch, (row,))


def _disturb(parts: ControllerParts, given: Fields) -> None:
    """Let ZooKeeper refuse the write."""
    match given.take("zk_update", "OK"):
        case "OK":
            pass
        case "BADVERSION":  # a write came in between
            known = parts.context.partition_leadership_info(T0)
            assert known is not None
            now = known.leader_and_isr
            parts.put_state(T0, now.leader, (now.leader,), leader_epoch=now.leader_epoch)
        case "NONODE":
            parts.delete_topic(T0.topic)
        case unknown:
            raise UnknownInCaseError(f"zk_update {unknown!r}")


def _assert_answer(
    parts: ControllerParts,
    response: AlterPartitionResponse,
    before: LeaderAndIsr | None,
    expect: Fields,
) -> None:
    rows = response.partitions
    for key in ("partition", "partition_error"):
        for error in expect.expected(key):
            assert [row.error_code.name for row in rows] == [error or "NONE"]
    for is_retried in expect.expected("retried"):
        assert is_retried is False  # the controller keeps the conflicting state
        stored = parts.state(T0)
        assert stored is not None
        assert stored.leader_and_isr.isr == (stored.leader_and_isr.leader,)
    for returned in expect.expected("returned"):
        known = parts.context.partition_leadership_info(T0)
        assert known is not None
        assert known == parts.state(T0)
        assert [_led(row) for row in rows] == [known.leader_and_isr]
        check_words(str(returned), "returned", _STATE_WORDS)
        is_new = not re.search("unchanged|cached", str(returned))
        assert (known.leader_and_isr != before) is is_new


def _led(row: AlteredPartition) -> LeaderAndIsr:
    return LeaderAndIsr(row.leader, row.isr, row.leader_epoch, row.partition_epoch)


# --- reassignments --------------------------------------------------------------------------------


def reassignment_validation(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        topic_partition = partition(given.take("tp", "t-0"))
        target: Sequence[BrokerId] | None = given.take("target", [1, 2])
        request = AlterPartitionReassignmentsRequest.of(
            {topic_partition: None if target is None else tuple(target)}
        )
        to = given.take("to", "controller")
        live = given.take("live", [0, 1, 2, 3, 4])
        count = given.take("topic_partitions", topic_partition.partition + 1)
        state = given.take(
            "topic_state", "absent" if is_called_unknown(topic_partition.topic) else "usual"
        )
        is_moving = given.take("being_reassigned", False)
        if one_of(to, {"controller": False, "non_controller": True}, "to"):
            answer = _ask_another_broker(ApiPartitionReassignment(1, request))
            assert isinstance(answer, AlterPartitionReassignmentsResponse)
            assert Errors(answer.error_code).name == expect.take("error")
            return
        parts = _assigned_office(topic_partition, live, count, state, is_moving=is_moving)
        before = parts.tree_of_assignments()
        response = parts.reassignments.submit(request)
        assert response.error_code == Errors.NONE
        expected = expect.take("error", None)
        (result,) = response.results.values()
        assert result.error_code.name == (expected or "NONE")
        assert (parts.tree_of_assignments() == before) is (expected not in (None, "NONE"))


class _Assigned(ControllerParts):
    def tree_of_assignments(self) -> dict[str, bytes]:
        """Return every topic's znode."""
        return {
            path: node.data
            for path, node in self.zookeeper.snapshot().items()
            if path.startswith("/brokers/topics/")
        }


def _assigned_office(
    topic_partition: TopicPartition,
    live: Sequence[BrokerId],
    count: int,
    state: Any,
    *,
    is_moving: bool,
) -> _Assigned:
    """A controller that knows ``count`` partitions of the topic, led by the first broker."""
    parts = _Assigned({0, *live})
    for broker_id in {0} - set(live):
        parts.context.remove_live_broker(broker_id)
    if one_of(state, {"usual": False, "queued_for_deletion": False, "absent": True}, "state"):
        return parts
    first, second = (*live, 97, 98)[:2]
    assignment = ReplicaAssignment((first, second), (second,) if is_moving else ())
    for index in range(count):
        parts.lead(TopicPartition(topic_partition.topic, index), assignment, first, (first,))
    parts.put_topic(topic_partition.topic, dict.fromkeys(range(count), assignment), topic_id(7))
    if state == "queued_for_deletion":
        parts.context.queue_topic_deletion([topic_partition.topic])
    return parts
