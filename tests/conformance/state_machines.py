"""The two state machines: PartitionStateMachineTest and ReplicaStateMachineTest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regent.core.controller.controller import Controller
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.events import RegisterBrokerAndReelect, TopicUncleanLeaderElectionEnable
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.states import (
    VALID_PREVIOUS_PARTITION_STATES,
    VALID_PREVIOUS_REPLICA_STATES,
    PartitionState,
    ReplicaState,
)
from regent.core.model import (
    NO_LEADER,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    TopicPartition,
)
from regent.core.protocol.control import LeaderAndIsrRequest
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    assert_leadership,
    one_of,
    partition,
)
from tests.conformance.machines import (
    EXCEPTION,
    PARTITION_STATES,
    REPLICA_STATES,
    AddedRow,
    ScriptedStore,
    WatchedServices,
    arrange,
    put_replica_state,
    watched_services,
)
from tests.conformance.rules import strategy
from tests.support.controller_parts import ControllerParts
from tests.support.world import TopicIds, broker_info

T0 = TopicPartition("t", 0)


# --- valid state changes --------------------------------------------------------------------------


def partition_state_transitions(case: Case) -> None:
    before = one_of(case.take("from"), PARTITION_STATES, "from")
    target = one_of(case.take("to"), PARTITION_STATES, "to")
    parts = ControllerParts([0])
    if before in (PartitionState.ONLINE, PartitionState.OFFLINE):
        parts.lead(T0, (0,), 0 if before is PartitionState.ONLINE else NO_LEADER, (0,), before)
    else:
        parts.assign(T0, (0,), before)
    parts.partitions.handle_state_changes([T0], target, strategy("offline"))
    assert (before in VALID_PREVIOUS_PARTITION_STATES[target]) is case.take("valid")
    assert parts.context.partition_state(T0) is one_of(
        case.take("final_state"), PARTITION_STATES, "final_state"
    )


def replica_state_transitions(case: Case) -> None:
    before = one_of(case.take("from"), REPLICA_STATES, "from")
    target = one_of(case.take("to"), REPLICA_STATES, "to")
    parts = ControllerParts([0, 5, 6])
    if before in (ReplicaState.NON_EXISTENT, ReplicaState.NEW):
        parts.assign(T0, (5, 6))
    else:
        parts.lead(T0, (5, 6), 5, (5, 6))
    parts.put_replica_state(T0, 5, before)
    parts.replicas.handle_state_changes([PartitionAndReplica(T0, 5)], target)
    assert (before in VALID_PREVIOUS_REPLICA_STATES[target]) is case.take("valid")
    assert parts.replica_state(T0, 5) is one_of(
        case.take("final_state"), REPLICA_STATES, "final_state"
    )


# --- the partition state machine ------------------------------------------------------------------


def partition_state_machine(case: Case) -> None:
    with case.nested("given") as given, case.nested("expect") as expect:
        with case.nested("action") as action:
            target = one_of(action.take("target"), PARTITION_STATES, "the target")
            name = action.take("strategy", None)
            allow_unclean = action.take("allow_unclean", False)
        before = one_of(given.take("state", "NonExistent"), PARTITION_STATES, "the state")
        store = ScriptedStore()
        store.version_after_write = expect.take("zk_version_after_write", None)
        if EXCEPTION in (given.take("zk_create", None), given.nested("zk_get").rest().get("code")):
            if (target, name, allow_unclean) != (PartitionState.ONLINE, "offline", False):
                raise UnknownInCaseError("only a clean offline election can raise an exception")
            _meet_an_exception(store, before, given, expect)
            return
        services = watched_services(store)
        where = arrange(services.context, store, given)
        services.context.put_partition_state(where, before)
        PartitionStateMachine(services).handle_state_changes(
            [where],
            target,
            None if name is None else strategy(name, allow_unclean=allow_unclean),
        )
        for raises in expect.expected("raises"):
            assert raises is False  # else it would have raised
        for state in expect.expected("state"):
            assert services.context.partition_state(where) is PARTITION_STATES[state]
        _assert_written(store, services, where, expect)
        _assert_added(services.added, expect)
        for flushed in expect.expected("batch_flushed"):
            assert (services.announced == services.batches) is flushed


def _meet_an_exception(
    store: ScriptedStore, before: PartitionState, given: Fields, expect: Fields
) -> None:
    """Let ZooKeeper fail while the controller handles an event.

    The event ends there and the controller continues; the content of its batch is not kept: the
    partition goes online as soon as ZooKeeper answers again.
    """
    controller = Controller(broker_info(0), store, TopicIds())
    controller.handle(RegisterBrokerAndReelect(), now_ms=0)
    where = arrange(controller.context, store, given)
    controller.context.put_partition_state(where, before)
    event = TopicUncleanLeaderElectionEnable(where.topic)
    effects = controller.handle(event, now_ms=0)
    assert expect.take("raises", False) is False
    for state in expect.expected("state"):
        assert controller.context.partition_state(where) is PARTITION_STATES[state]
    assert expect.take("zk_update", None) is None
    assert store.updated == {}
    assert expect.take("zk_create", None) is None
    assert expect.take("leader_and_isr", None) is None
    for read in expect.expected("log_configs_requested_for_topics"):
        assert store.configs_read == read
    for read in expect.expected("topic_config_consulted"):
        assert bool(store.configs_read) is read
    sent = [e.request for e in effects if isinstance(e, SendControlRequest)]
    assert not any(isinstance(request, LeaderAndIsrRequest) for request in sent)
    assert expect.take("batch_flushed", True) is True
    store.reads = store.creations = "OK"
    if before is PartitionState.NEW or where in store.states:
        controller.handle(event, now_ms=0)
        assert controller.context.partition_state(where) is PartitionState.ONLINE


def _assert_written(
    store: ScriptedStore, services: WatchedServices, where: TopicPartition, expect: Fields
) -> None:
    for created in expect.expected("zk_create"):
        _assert_stored(store.created.get(where), created)
    for updated in expect.expected("zk_update"):
        state = store.updated.get(where)
        _assert_stored(state, updated)
        assert state is None or state.controller_epoch == services.context.epoch
    for topics in expect.expected("log_configs_requested_for_topics"):
        assert store.configs_read == topics
    for consulted in expect.expected("topic_config_consulted"):
        assert bool(store.configs_read) is consulted


def _assert_stored(state: LeaderIsrAndControllerEpoch | None, expected: Any) -> None:
    if state is None:
        assert expected is None
    else:
        assert_leadership(state.leader_and_isr, expected, state.controller_epoch)


def _assert_added(added: list[AddedRow], expect: Fields) -> None:
    for expected in expect.expected("leader_and_isr"):
        if expected is None:
            assert added == []
            continue
        assert len(added) == 1
        with Fields(expected, "leader_and_isr") as fields:
            for receivers in fields.expected("to"):
                assert sorted(added[0].broker_ids) == sorted(receivers)
            for state in fields.expected("state"):
                assert_leadership(added[0].leadership.leader_and_isr, state)
            for is_new in fields.expected("is_new"):
                assert added[0].is_new is is_new
            for replicas in fields.expected("replicas"):
                assert list(added[0].assignment.replicas) == replicas


# --- the replica state machine --------------------------------------------------------------------


def replica_state_machine(case: Case) -> None:
    with case.nested("given") as given, case.nested("expect") as expect:
        replica = given.take("replica")
        state = given.take("state", None)
        store = ScriptedStore()
        store.version_after_write = expect.take("zk_version_after_write", None)
        services = watched_services(store)
        where = arrange(services.context, store, given)
        put_replica_state(services.context, where, replica, state)
        _act(services, PartitionAndReplica(where, replica), case)
        for expected in expect.expected("state"):
            actual = services.context.replica_state(PartitionAndReplica(where, replica))
            assert actual is one_of(expected, REPLICA_STATES, "the expected state")
        for replicas in expect.expected("assignment"):
            assert list(services.context.partition_replica_assignment(where)) == replicas
        for cached in expect.expected("cached"):
            known = services.context.partition_leadership_info(where)
            assert_leadership(None if known is None else known.leader_and_isr, cached)
        _assert_written(store, services, where, expect)
        _assert_added(services.added, expect)
        _assert_stopped(services, expect)
        _assert_metadata(services, expect)


def _act(services: WatchedServices, replica: PartitionAndReplica, case: Case) -> None:
    replicas = ReplicaStateMachine(services)
    with case.nested("action") as action:
        if "call" in action:
            start = one_of(action.take("call"), {"startup": replicas.startup}, "the call")
            start(services.context.begin_replica_states())
            return
        target = one_of(action.take("target"), REPLICA_STATES, "the target")
    replicas.handle_state_changes([replica], target)


def _assert_stopped(services: WatchedServices, expect: Fields) -> None:
    for expected in expect.expected("stop_replica"):
        if expected is None:
            assert services.stopped == []
            continue
        with Fields(expected, "stop_replica") as fields:
            for receivers in fields.expected("to"):
                assert sorted({s.broker_id for s in services.stopped}) == sorted(receivers)
            for delete in fields.expected("delete"):
                assert {s.delete for s in services.stopped} == {delete}


def _assert_metadata(services: WatchedServices, expect: Fields) -> None:
    for expected in expect.expected("update_metadata"):
        added = [named for batch in services.batches for named in batch.metadata]
        if not isinstance(expected, dict):
            assert bool(added) is bool(expected)
            continue
        all_brokers = services.context.live_or_shutting_down_broker_ids
        with Fields(expected, "update_metadata") as fields:
            for receivers in fields.expected("to"):
                reached = {b for _, to in added for b in (all_brokers if to is None else to)}
                assert sorted(reached) == (all_brokers if receivers == "all" else sorted(receivers))
            for names in fields.expected("partitions"):
                told_of = {
                    topic_partition for partitions, _ in added for topic_partition in partitions
                }
                assert told_of == set(map(partition, names))


def isr_removal(case: Case) -> None:
    """The leadership after a replica goes offline."""
    with case.nested("in") as given, case.nested("expect") as expect:
        replica, isr = given.take("replica"), tuple(given.take("isr"))
        leader, epoch = given.take("leader"), given.take("leader_epoch")
        others = [r for r in (*isr, leader) if r not in (replica, NO_LEADER)]
        replicas = tuple(dict.fromkeys((*isr, *others, replica)))
        parts = ControllerParts({0, *others})
        parts.lead(T0, replicas, leader, isr)
        parts.put_state(T0, leader, isr, leader_epoch=epoch)
        before = parts.state(T0)
        assert before is not None
        parts.context.put_partition_leadership_info(T0, before)
        parts.replicas.handle_state_changes([PartitionAndReplica(T0, replica)], _OFFLINE)
        _assert_shrunk(parts, before, expect)


_OFFLINE = ReplicaState.OFFLINE


def _assert_shrunk(parts: ControllerParts, before: Any, expect: Fields) -> None:
    after = parts.state(T0)
    assert after is not None
    left = after.leader_and_isr
    known = parts.known(T0)
    assert known == (left.leader, left.isr, left.leader_epoch)
    for leader in expect.expected("leader"):
        assert left.leader == leader
    for isr in expect.expected("isr"):
        assert list(left.isr) == isr
    for epoch in expect.expected("leader_epoch"):
        assert left.leader_epoch == epoch
    for written in expect.expected("zk_write"):
        if isinstance(written, Mapping):
            assert_leadership(left, written)
        assert (after != before) is bool(written)
