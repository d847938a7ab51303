"""Pure functions: elections, assignments, placement, the throttles of a reassignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from regent.client.move_throttle import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    throttled_brokers,
    throttled_replicas,
)
from regent.client.moves import Move
from regent.core.controller.election.election import (
    ControlledShutdownElection,
    ElectionStrategy,
    OfflineElection,
    PartitionChange,
    PartitionReplicas,
    PreferredElection,
    ReassignElection,
    elect,
)
from regent.core.errors import Errors
from regent.core.model import LeaderAndIsr, ReplicaAssignment
from regent.core.placement.replica_placer import (
    PlacementError,
    Strategy,
    place,
    rack_alternated_brokers,
)
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from tests.conformance.fields import (
    Case,
    Fields,
    assert_assignment,
    assignment,
    one_of,
    partition,
)

RANDOM_STARTS = 20
"""The number of random placements for a case without a start index."""

# Kafka's own tools raise AdminOperationException where the protocol has no error code.
ERRORS = {error.name: error for error in Errors} | {"ADMIN_OPERATION": Errors.INVALID_REQUEST}


def strategy(name: str, *, allow_unclean: bool = False) -> ElectionStrategy:
    """Return the strategy with this name."""
    strategies: dict[str, ElectionStrategy] = {
        "offline": OfflineElection(allow_unclean),
        "reassign": ReassignElection(),
        "preferred": PreferredElection(),
        "controlled_shutdown": ControlledShutdownElection(),
    }
    chosen: ElectionStrategy = one_of(name, strategies, "the strategy")
    return chosen


def leader_election(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        live, shutting_down = given.take("live"), given.take("shutting_down", [])
        chosen = strategy(given.take("algorithm"), allow_unclean=given.take("unclean", False))
        outcome = elect(
            chosen,
            LeaderAndIsr(-1, tuple(given.take("isr"))),
            PartitionReplicas(
                ReplicaAssignment(tuple(given.take("assignment"))),
                is_online=lambda r: r in live and r not in shutting_down,
                is_reachable=lambda r: r in live,
                is_shutting_down=lambda r: r in shutting_down,
            ),
        )
        for leader in expect.expected("leader"):
            assert getattr(outcome, "leader_and_isr", (None,))[0] == leader
        for count in expect.expected("unclean_elections"):
            is_unclean = isinstance(outcome, PartitionChange) and outcome.is_unclean
            assert is_unclean == count


def replica_assignment_target(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        assert_assignment(assignment(given.rest()), expect)


def replica_assignment_reassign(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        start = assignment(given.take("start"))
        assert_assignment(start.reassign_to(given.take("target")), expect)


def rack_alternated_list(case: Case) -> None:
    racks = {int(broker_id): rack for broker_id, rack in case.take("in").items()}
    assert rack_alternated_brokers(racks) == case.take("expect")


def _placement(given: Fields, seed: int) -> PlaceTopicsRequest:
    """Return the arguments of Kafka's ``AdminUtils.assignReplicasToBrokers``."""
    racks: Mapping[int, str | None]
    if "racks" in given:
        racks = {int(broker_id): rack for broker_id, rack in given.take("racks").items()}
    else:
        racks = dict.fromkeys(given.take("brokers"))
    rack_aware = given.take("rack_aware", any(rack is not None for rack in racks.values()))
    start = given.take("fixed_start_index", None)
    first = given.take("start_partition_id", None)
    spec = PlacementSpec("t", given.take("partitions", 1), given.take("rf", 1), max(0, first or 0))
    return PlaceTopicsRequest(
        topics=(spec,),
        brokers=tuple(PlacementBroker(broker_id, rack, 0) for broker_id, rack in racks.items()),
        strategy=Strategy.RACK_AWARE if rack_aware else Strategy.KAFKA,
        start_index="random" if start is None or start < 0 else str(start),
        index="per-topic",
        seed=seed,
    )


def replica_placement_exact(case: Case) -> None:
    with case.nested("in") as given:
        placed = place(_placement(given, seed=0))
    expected = {int(number): replicas for number, replicas in case.take("expect").items()}
    assert {row.partition: list(row.replicas) for row in placed} == expected


def replica_placement_error(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        error: Errors | None = None
        try:
            place(_placement(given, seed=0))
        except PlacementError as refused:
            error = refused.error_code
        expected = expect.take("error")
        assert error == (None if expected is None else one_of(expected, ERRORS, "the error"))


def replica_placement_property(case: Case) -> None:
    for seed in range(RANDOM_STARTS):
        with Fields(case.take("in"), "in") as given:
            request = _placement(given, seed)
        with Fields(case.take("expect"), "expect") as expect:
            _assert_properties(request, expect)


def _assert_properties(request: PlaceTopicsRequest, expect: Fields) -> None:
    placed = [row.replicas for row in place(request)]
    racks = {broker.broker_id: broker.rack for broker in request.brokers}
    leaders = Counter(replicas[0] for replicas in placed)
    hosted = Counter(replica for replicas in placed for replica in replicas)
    expect.take("note", None)
    for count in expect.expected("replicas_per_partition"):
        assert all(len(replicas) == count for replicas in placed)
    for distinct in expect.expected("distinct_brokers_per_partition"):
        assert distinct is True
        assert all(len(set(replicas)) == len(replicas) for replicas in placed)
    for count in expect.expected("distinct_racks_per_partition"):
        assert all(len({racks[r] for r in replicas}) == count for replicas in placed)
    for per_broker in expect.expected("leaders_per_broker"):
        assert {broker: leaders[broker] for broker in racks} == dict.fromkeys(racks, per_broker)
    for per_broker in expect.expected("replicas_per_broker"):
        assert {broker: hosted[broker] for broker in racks} == dict.fromkeys(racks, per_broker)


def reassign_tool_move_map(case: Case) -> None:
    """One partition, or an object of partitions where throttles are expected."""
    with case.nested("in") as given, case.nested("expect") as expect:
        current, proposed = given.take("current", {}), given.take("proposed", None)
        if "sources" in expect or "destinations" in expect:
            move = _move("t-0", current, proposed)
            assert sorted(move.before) == sorted(expect.take("sources"))
            assert sorted(move.added) == sorted(expect.take("destinations"))
            return
        moves = [
            _move(name, current.get(name, ()), (proposed or {}).get(name))
            for name in {*current, *(proposed or {})}
        ]
        lists = throttled_replicas(moves)
        for leader in expect.expected("leader"):
            assert {t: ",".join(of[LEADER_REPLICAS]) for t, of in lists.items()} == leader
        for follower in expect.expected("follower"):
            assert {t: ",".join(of[FOLLOWER_REPLICAS]) for t, of in lists.items()} == follower
        for brokers in expect.expected("brokers"):
            assert sorted(throttled_brokers(moves)) == sorted(brokers)


def _move(name: str, current: Any, proposed: Any) -> Move:
    """Return the move to the replicas ``proposed``; None: the ongoing one."""
    present = assignment(current)
    target = present.target_replicas if proposed is None else tuple(proposed)
    return Move(partition(name), present.origin_replicas, target)
