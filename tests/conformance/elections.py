"""Requested elections: PlaintextAdminIntegrationTest, LeaderElectionCommandTest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regent.core.controller.states import PartitionState
from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.messages.partitions import (
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from regent.zk.znodes import PreferredReplicaElectionZNode
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    is_called_unknown,
    one_of,
    partition,
)
from tests.support.controller_parts import ControllerParts


class Ballot:
    """A controller and the partitions of a case."""

    def __init__(self, given: Fields) -> None:
        self.type: ElectionType = one_of(
            given.take("type", "PREFERRED"), ElectionType.__members__, "the type"
        )
        wanted = given.take("partitions", "all")
        self.wanted: list[str] | None = None if wanted in ("all", None) else list(wanted)
        replicas = given.take("replicas", None)
        if not isinstance(replicas, Mapping):
            names = given.take("existing", ["t-0"] if self.wanted is None else None)
            if names is None:
                names = [] if replicas is None else self.wanted
                names = [name for name in names or () if not is_called_unknown(name)]
            replicas = dict.fromkeys(names, replicas or [0, 1, 2])
        else:
            given.take("existing", None)
        self.replicas: Mapping[str, list[BrokerId]] = replicas
        self._live = given.take("live", sorted({0, 1, 2, *_all(replicas.values())}))
        self.parts = ControllerParts({0, *self._live})
        if 0 not in self._live:
            self.parts.context.remove_live_broker(0)
        leader, leaders = given.take("leader", None), given.take("leaders", {})
        isrs = given.take("isr", {})
        for known in (leaders, isrs if isinstance(isrs, Mapping) else {}):
            if not set(known) <= set(replicas):
                raise UnknownInCaseError(f"{sorted(set(known) - set(replicas))} have no replicas")
        for name, assigned in replicas.items():
            isr = isrs.get(name) if isinstance(isrs, Mapping) else isrs
            self._lead(name, assigned, leaders.get(name, leader), isr)
        self._put_state(given.take("topic_state", "usual"))
        self.before = {name: self.leader(name) for name in replicas}

    def _lead(
        self, name: str, replicas: Sequence[BrokerId], leader: BrokerId | None, isr: Any
    ) -> None:
        """Add a partition; by default all replicas are in sync and the first live one leads."""
        alive = [r for r in replicas if r in self._live]
        in_sync = list(isr if isr is not None else alive or replicas)
        if leader is None:
            able = [r for r in in_sync if r in alive]
            leader = able[0] if able else NO_LEADER
        elif leader == NO_LEADER and isr is None:
            in_sync = [r for r in replicas if r not in self._live] or list(replicas)
        state = PartitionState.OFFLINE if leader == NO_LEADER else PartitionState.ONLINE
        self.parts.lead(partition(name), tuple(replicas), leader, tuple(in_sync), state)

    def _put_state(self, state: str) -> None:
        if one_of(state, {"usual": False, "queued_for_deletion": True}, "the topic's state"):
            topics = {partition(name).topic for name in self.replicas}
            self.parts.context.queue_topic_deletion(topics)

    def leader(self, name: str) -> BrokerId:
        """Return the leader in ZooKeeper."""
        return self.parts.leads(partition(name))[0]

    def elect(self) -> ElectLeadersResponse:
        """Request the election."""
        topic_partitions = None if self.wanted is None else tuple(map(partition, self.wanted))
        return self.parts.elections.elect(ElectLeadersRequest.of(self.type, topic_partitions))

    def name_of(self, found: TopicPartition) -> str:
        """Return the partition that the case means."""
        known = [*self.replicas, *(self.wanted or ())]
        names: list[str] = [name for name in known if partition(name) == found]
        return names[0]


def _all(lists: Any) -> list[BrokerId]:
    return [replica for replicas in lists for replica in replicas]


def elect_leaders(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        triggers = given.take("trigger", None)
        if triggers is not None:
            for trigger in [triggers] if isinstance(triggers, str) else triggers:
                _assert_trigger(trigger, expect.take("allow_unclean"))
            for name in given.expected("type"):
                one_of(name, ElectionType.__members__, "the type")
            return
        if "topic_state" in given and "partitions" not in given and "replicas" not in given:
            given = Fields({**given.rest(), "partitions": ["t-0"], "existing": ["t-0"]}, "in")
        ballot = Ballot(given)
        with given:
            _assert_outcome(ballot, expect)


def _assert_outcome(ballot: Ballot, expect: Fields) -> None:
    response = ballot.elect()
    assert response.error_code == Errors.NONE
    errors = {ballot.name_of(p): result.error_code.name for p, result in response.results.items()}
    for error in expect.expected("error"):
        if isinstance(error, Mapping):
            assert {name: errors[name] for name in error} == {
                name: wanted or "NONE" for name, wanted in error.items()
            }
        else:
            assert errors
            assert set(errors.values()) == {error or "NONE"}
    for entries in expect.expected("result_entries"):
        names = sorted(errors)
        assert len(names) == entries if isinstance(entries, int) else names == sorted(entries)
    for leader in expect.expected("leader"):
        assert {ballot.leader(name) for name in ballot.replicas} == {leader}
    for leaders in expect.expected("leaders"):
        assert {name: ballot.leader(name) for name in leaders} == leaders
    for is_changed in expect.expected("leader_changed"):
        after = {name: ballot.leader(name) for name in ballot.replicas}
        assert (after != ballot.before) is is_changed


def _assert_trigger(trigger: str, allow_unclean: bool) -> None:
    """Whether this kind of request lets a replica outside the ISR lead."""
    ballot = Ballot(
        Fields({"replicas": {"t-0": [1, 2]}, "live": [0, 1], "leaders": {"t-0": -1}}, "in")
    )
    match trigger:
        case "zookeeper":
            data = PreferredReplicaElectionZNode.encode([TopicPartition("t", 0)])
            ballot.parts.zookeeper.put(PreferredReplicaElectionZNode.PATH, data)
            ballot.parts.elections.on_preferred_replica_election()
        case "auto":
            ballot.parts.elections.rebalance()
        case "admin":
            ballot.type = ElectionType.UNCLEAN
            ballot.elect()
        case unknown:
            raise UnknownInCaseError(f"trigger {unknown!r}")
    assert (ballot.leader("t-0") == 1) is allow_unclean
