"""How a broker applies control requests, and how a leader maintains its ISR.

KafkaApisTest, ReplicaManagerTest, PartitionTest, IsrExpirationTest, AssignmentStateTest,
AlterIsrManagerTest, MetadataCacheTest: over the real ``ReplicaManager`` and its parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH
from regent.core.ports import ControlFacts
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    UpdateMetadataRequest,
)
from regent.core.replication.partition import Partition, out_of_sync_members
from tests.conformance.fields import Case, Fields, UnknownInCaseError, one_of
from tests.conformance.leading import (
    LAG_MS,
    NAME,
    CountedLogs,
    Follower,
    Leader,
    fresh_manager,
    leader_and_isr_row,
)

ERRORS = {error.name: error for error in Errors}


# --- epochs ---------------------------------------------------------------------------------------


def _requests(leader_epoch: int = 0, *, delete: bool = False) -> Mapping[str, ControlRequest]:
    """Return a request of each kind about the partition."""
    row = leader_and_isr_row(0, (0,), (0,), leader_epoch=leader_epoch)
    stop = StopReplicaPartition(0, leader_epoch, delete)
    return {
        "LeaderAndIsr": LeaderAndIsrRequest(
            LeaderAndIsrType.INCREMENTAL, (LeaderAndIsrTopic(NAME.topic, None, (row,)),), ()
        ),
        "StopReplica": StopReplicaRequest((StopReplicaTopic(NAME.topic, None, (stop,)),)),
        "UpdateMetadata": UpdateMetadataRequest((), ()),
    }


def broker_epoch_check(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        manager, _ = fresh_manager()
        manager.broker_epoch = given.take("broker_epoch")
        header = ControlHeader(1, 1, given.take("request_epoch"), broker_id=manager.broker_id)
        request = one_of(given.take("request"), _requests(), "the request")
        facts = ControlFacts(1, 1, header.broker_epoch)  # ZooKeeper has the newest registration
        is_metadata = isinstance(request, UpdateMetadataRequest)
        assert manager.fence.admit(header, facts, is_metadata=is_metadata)
        response = manager.handle(header, request, now_ms=0)
        assert response.error_code is one_of(expect.take("error"), ERRORS, "the error")


def controller_epoch_check(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        manager, _ = fresh_manager()
        known = ControlHeader(1, given.take("known_controller_epoch"), -1)
        assert manager.handle(known, UpdateMetadataRequest((), ()), 0).error_code is Errors.NONE
        header = ControlHeader(1, given.take("request_controller_epoch"), -1)
        request = one_of(given.take("request"), _requests(), "the request")
        response = manager.handle(header, request, now_ms=0)
        assert response.error_code is one_of(expect.take("error"), ERRORS, "the error")


def leader_and_isr_topic_id(case: Case) -> None:
    manager, _ = fresh_manager()
    for step in case.take("steps"):
        with Fields(step, "step") as fields:
            topic_id = fields.take("topic_id")
            row = leader_and_isr_row(0, (0,), (0,), leader_epoch=fields.take("leader_epoch"))
            topic = LeaderAndIsrTopic(
                NAME.topic, None if topic_id is None else str(topic_id).ljust(22, "_"), (row,)
            )
            request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())
            response = manager.handle(ControlHeader(1, 1, -1), request, now_ms=0)
            assert isinstance(response, LeaderAndIsrResponse)
            (answer,) = response.partition_errors
            assert answer.error_code is one_of(fields.take("error"), ERRORS, "the error")


def stop_replica_leader_epoch(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        manager, logs = fresh_manager()
        header = ControlHeader(1, 1, -1)
        where = given.take("partition", "hosted")
        if where in ("hosted", "offline"):
            epoch = given.take("partition_leader_epoch", given.take("request_leader_epoch"))
            manager.handle(header, _requests(epoch)["LeaderAndIsr"], now_ms=0)
        elif where == "not hosted, log on disk":
            logs.get_or_create(NAME, None, is_new=True)
        elif where != "not hosted":
            raise UnknownInCaseError(f"partition {where!r}")
        if where == "offline":
            logs.fail()
        logs.fails_to_delete = given.take("io_error", False)
        epoch = given.take("request_leader_epoch", NO_EPOCH)
        request = _requests(epoch, delete=given.take("delete"))["StopReplica"]
        response = manager.handle(header, request, now_ms=0)
        assert isinstance(response, StopReplicaResponse)
        (answer,) = response.partition_errors
        for error in expect.expected("error"):
            assert answer.error_code is one_of(error, ERRORS, "the error")
        for error in expect.expected("top_level"):
            assert response.error_code is one_of(error, ERRORS, "the error")
        for is_gone in expect.expected("partition_gone"):
            assert (NAME not in manager.partitions) is is_gone
        for remains in expect.expected("log_remains"):
            assert (NAME in logs.hosted()) is remains


# --- the ISR --------------------------------------------------------------------------------------


def isr_expiration(case: Case) -> None:
    with case.nested("config") as config:
        lag_ms = config.take("replica.lag.time.max.ms")
        leader = Leader(
            config.take("replicas"),
            config.take("initial_isr"),
            config.take("leader"),
            config.take("leader_leo"),
            lag_ms,
        )
    for step in case.take("steps"):
        with Fields(step, "step") as fields:
            leader.now_ms = fields.take("at", leader.now_ms)
            _maybe_fetch(leader, fields)
            for expected in fields.expected("out_of_sync"):
                partition = leader.partition
                gone = out_of_sync_members(
                    partition.isr,
                    partition.leader,
                    partition.followers,
                    leader.log_end_offset,
                    leader.now_ms,
                    lag_ms,
                )
                assert sorted(gone) == sorted(expected)


def _maybe_fetch(leader: Leader, fields: Fields) -> None:
    if "fetch_to" in fields:
        offset = fields.take("fetch_to")
        if isinstance(offset, str):
            said = re.fullmatch(
                r"(?:the )?(?:(?:leader'?s?|log) )*(?:log )?(?:end|leo)(?: offset)? ?([+-] ?\d+)?",
                offset.replace("_", " "),
            )
            if said is None:
                raise UnknownInCaseError(f"fetch_to {offset!r}")
            offset = leader.log_end_offset + int((said[1] or "0").replace(" ", ""))
        Follower(leader, fields.take("follower", 1)).fetch(offset)


def isr_change(case: Case) -> None:
    with case.nested("in") as given:
        leader = Leader(
            given.take("replicas"),
            given.take("isr"),
            given.take("leader"),
            given.take("leader_leo", _end_of_log(case)),
            LAG_MS,
            epoch_start=_epoch_start(given.take("epochs", None)),
        )
        min_isr = given.take("min_isr", 1)
        given.take("note", None)
    with case.nested("expect") as expect:
        for at_min_isr in expect.expected("at_min_isr"):
            assert (len(leader.partition.isr) == min_isr) is at_min_isr
    for step in case.take("steps", []):
        with Fields(step, "step") as fields:
            _isr_step(leader, fields)


def _epoch_start(epochs: Any) -> int | None:
    """Return where the newest epoch begins: of ``{epoch: start}`` or ``[[epoch, start]]``."""
    if epochs is None:
        return None
    rows = list(epochs.items()) if isinstance(epochs, Mapping) else epochs
    try:
        starts = {int(epoch): int(start) for epoch, start in rows}
    except (TypeError, ValueError):
        raise UnknownInCaseError(f"epochs {epochs!r}") from None
    return starts[max(starts)]


def _end_of_log(case: Case) -> int:
    """Return the log end offset if a case gives none: no follower is ahead of it."""
    offsets = [step.get("fetch_to", 0) for step in case.take("steps", [])]
    return max([10, *(offset for offset in offsets if isinstance(offset, int))])


def _isr_step(leader: Leader, fields: Fields) -> None:
    fields.take("note", None)
    pending = fields.take("pending", None)
    _let_time_pass(leader, fields)
    leader.append_to(fields.take("leader_leo", leader.log_end_offset))
    if "expand" in fields:
        Follower(leader, fields.take("expand")).fetch(leader.log_end_offset)
    elif "fetch_to" in fields:
        _maybe_fetch(leader, fields)
    elif "error" in fields:
        leader.answer(one_of(fields.take("error"), ERRORS, "the error"))
    elif fields.take("ack", False):
        leader.answer(Errors.NONE)
    if "shrink" in fields:
        # The followers to remove: during a proposal no other one is proposed.
        if not set(fields.take("shrink")) <= set(leader.partition.followers):
            raise UnknownInCaseError("a broker that is not a follower would be removed")
        leader.now_ms += LAG_MS + 1
        leader.check()
    elif fields.take("check", False):
        leader.check()
    if pending is not None:
        _assert_pending(leader, pending)
    _assert_isr(leader, fields)


def _assert_pending(leader: Leader, sentence: str) -> None:
    """Compare with a sentence about the pending proposal."""
    said = re.fullmatch(
        r"(?:the )?(shrink|expansion|expand|proposal) (?:stays|is) pending", sentence
    )
    if said is None:
        raise UnknownInCaseError(f"pending: {sentence!r}")
    proposal, isr = leader.partition.proposal, leader.partition.isr
    assert proposal is not None, sentence
    if said[1] != "proposal":
        assert (len(proposal.new_isr) < len(isr)) is (said[1] == "shrink"), sentence


def _let_time_pass(leader: Leader, fields: Fields) -> None:
    leader.now_ms = fields.take("at", leader.now_ms)
    leader.now_ms += fields.take("after_ms", 0)
    after = fields.take("after", None)
    leader.now_ms += one_of(
        after, {None: 0, "replica.lag.time.max.ms+1": LAG_MS + 1}, "the time that passes"
    )


def _assert_isr(leader: Leader, fields: Fields) -> None:
    partition = leader.partition
    for proposed in fields.expected("proposed"):
        found = partition.proposal
        assert (None if found is None else list(found.new_isr)) == proposed
    for isr in fields.expected("isr"):
        assert list(partition.isr) == isr
    for isr in fields.expected("maximal_isr"):
        assert sorted(partition.maximal_isr) == sorted(isr)
    for offset in fields.expected("hw"):
        assert partition.high_watermark == offset
    for resubmitted in fields.expected("resubmitted"):
        assert (leader.send() is not None) is resubmitted
    for count in fields.expected("proposals_outstanding"):
        request = leader.in_flight or leader.send()
        assert (0 if request is None else len(request.partitions)) == count
    for count in fields.expected("expands"):
        assert leader.manager.counters.isr_expands == count
    for count in fields.expected("shrinks"):
        assert leader.manager.counters.isr_shrinks == count
    for at_ms in fields.expected("last_caught_up"):
        assert {f.last_caught_up_ms for f in partition.followers.values()} == {at_ms}


def under_replicated(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        if "isr" in given:
            _assert_replication(given, expect)
    for step in case.take("steps", []):
        with Fields(step, "step") as fields:
            _assert_replication(fields, fields)


def _assert_replication(given: Fields, expect: Fields) -> None:
    local, isr = given.take("local", 0), given.take("isr")
    partition = Partition(NAME)
    partition.open(CountedLogs().get_or_create(NAME, None, is_new=True), 0)
    original: Sequence[int] = given.take("original", [])
    if original:
        partition.make_leader(leader_and_isr_row(local, original, original), now_ms=0)
    state = leader_and_isr_row(
        local,
        isr,
        given.take("replicas"),
        adding=given.take("adding", ()),
        removing=given.take("removing", ()),
        leader_epoch=1,
    )
    partition.make_leader(state, now_ms=0)
    for is_missing in expect.expected("under_replicated"):
        assert partition.is_under_replicated is is_missing
    for reassigning in expect.expected("reassigning"):
        assert partition.assignment.is_being_reassigned is reassigning
    for is_adding in expect.expected("local_is_adding"):
        assert (local in partition.assignment.adding_replicas) is is_adding
