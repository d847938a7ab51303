"""Groups of consumers, in some histories: their topic, the consumers, and tools.

Such histories have random numbers of their own for groups; others are as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from regent.core.coordinator.group.group_metadata_manager import GroupConfig
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    GroupRequest,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    SupportedProtocol,
)
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from regent.zk.znodes import DeleteTopicsTopicZNode
from tests.simulation.client_processes import ClientProcesses
from tests.simulation.client_requests import GroupCall
from tests.simulation.cluster import Cluster
from tests.simulation.coordinators import Coordinators, create_topic
from tests.simulation.group_history import GroupHistory
from tests.simulation.group_members import (
    REBALANCE_TIMEOUTS_MS,
    SESSION_TIMEOUTS_MS,
    TOPIC,
    ConsumedTopic,
    Consumer,
    consumed,
)
from tests.simulation.group_server import GroupWorld
from tests.simulation.invariants import Invariants
from tests.simulation.odds import GROUPS_ACT_PROBABILITY, GROUPS_PROBABILITY, Menu
from tests.support.world import subscription

MAX_CONSUMERS = 4
DELETION_HISTORIES = 0.15
REST_STEP_MS = 200
ROUNDS = 40
ROUND_MS = 1_000
FORMER_TOPIC = "formerly"  # consumed no more


def group_world(seed: int) -> GroupWorld | None:
    """Return what coordinators share; None: there are no groups in this history."""
    if random.Random(f"{seed}, members and offsets").random() >= GROUPS_PROBABILITY:
        return None
    dice = random.Random(f"{seed}, coordinators")
    config = GroupConfig(
        group_min_session_timeout_ms=100,
        group_initial_rebalance_delay_ms=dice.choice((0, 500)),
    )
    return GroupWorld(config=config, partitions=dice.choice((1, 1, 2)), dice=dice)


class Groups:
    """All groups of a history; ``note`` writes it."""

    def __init__(
        self,
        cluster: Cluster,
        world: GroupWorld,
        seed: int,
        invariants: Invariants,
        note: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._random = random.Random(f"{seed}, consumers")
        self._note = note
        self.history = world.observer = GroupHistory(cluster, world, invariants)
        self._coordinators = Coordinators(
            cluster, GROUP_METADATA_TOPIC, world.partitions, self._random, GroupCall
        )
        self._processes: ClientProcesses[Consumer] = ClientProcesses(
            "consumer", cluster, self._random, note
        )
        self._topics = [ConsumedTopic(name) for name in ("orders", "bills")[: world.partitions]]
        world.keys = tuple(topic.group_id for topic in self._topics)
        self._menu = Menu(self._random)
        self._menu.add(self._begin, 3, is_remedy=True)
        self._menu.add(self._processes.stall, 3)
        self._menu.add(self._processes.kill, 2)
        self._menu.add(self._leave)
        self._menu.add(self._come_back, 2, is_remedy=True)
        self._menu.add(self._rejoin)
        self._menu.add(self._resubscribe)
        self._menu.add(self._expand, 0.5)
        self._menu.add(self._processes.repeat, 2)
        self._menu.add(self._use_a_tool, 3)
        if self._random.random() < DELETION_HISTORIES:
            self._menu.add(self._delete_topic, 0.5)
            self._menu.add(self._create_topic, 2, is_remedy=True)
        cluster.rest_step_ms = REST_STEP_MS

    def begin(self) -> None:
        """Create the topic of the coordinators, and the first consumers."""
        self._create_topic()
        for _ in range(self._random.randint(1, MAX_CONSUMERS)):
            self._begin()

    def _create_topic(self) -> None:
        partitions = self._world.partitions
        create_topic(self._cluster, self._random, self._note, GROUP_METADATA_TOPIC, partitions)

    def _delete_topic(self) -> None:
        self._note("delete %s", GROUP_METADATA_TOPIC)
        self._cluster.zookeeper.put(DeleteTopicsTopicZNode.path(GROUP_METADATA_TOPIC))

    def act_at_times(self) -> None:
        """Let something happen to consumers, now and then."""
        if self._random.random() < GROUPS_ACT_PROBABILITY:
            self._menu.act()

    # --- consumers ---

    def _living(self, topic: ConsumedTopic | None = None) -> list[Consumer]:
        return [c for c in self._processes.living if topic in (None, c.topic)]

    def _begin(self) -> None:
        if len(self._living()) >= MAX_CONSUMERS:
            return
        number = len(self._processes.all)
        is_static = self._random.random() < 0.4
        self._start(self._random.choice(self._topics), f"static{number}" if is_static else None)

    def _start(self, topic: ConsumedTopic, instance_id: str | None) -> None:
        dice = self._random
        both = ("range", "roundrobin")
        names = dice.choice((both, both[::-1]))  # a loaded group knows only the one in use
        consumer = Consumer(
            len(self._processes.all),
            topic,
            self._coordinators,
            self._note,
            instance_id,
            dice.choice(SESSION_TIMEOUTS_MS),
            dice.choice(REBALANCE_TIMEOUTS_MS),
            tuple(SupportedProtocol(name, subscription(TOPIC, user_data=b"")) for name in names),
            dice.random() < 0.7,
            dice.random() < 0.7,
        )
        self._processes.all.append(consumer)
        self._note("consumer %d of %s begins, %s", consumer.number, topic.group_id, instance_id)
        consumer.tick()

    def _leave(self) -> None:
        consumer = self._processes.one()
        if consumer is not None:
            self._note("consumer %d leaves", consumer.number)
            consumer.leave()

    def _come_back(self) -> None:
        """Start a process with the instance id of another one, which may live."""
        static = [c for c in self._processes.all if c.instance_id is not None]
        if static:
            former = self._random.choice(static)
            self._start(former.topic, former.instance_id)

    def _rejoin(self) -> None:
        consumer = self._processes.one()
        if consumer is not None and consumer.is_stable:
            self._note("consumer %d joins again", consumer.number)
            consumer.rejoin()

    def _resubscribe(self) -> None:
        consumer = self._processes.one()
        if consumer is not None:
            self._change_subscription(consumer)

    def _change_subscription(self, consumer: Consumer) -> None:
        self._note("consumer %d subscribes again", consumer.number)
        data = b"%d" % self._cluster.now_ms
        consumer.protocols = tuple(
            SupportedProtocol(name, subscription(TOPIC, user_data=data))
            for name, _ in consumer.protocols
        )
        consumer.rejoin()

    def _expand(self) -> None:
        topic = self._random.choice(self._topics)
        topic.partitions = min(topic.partitions + 1, 6)

    # --- tools ---

    def _use_a_tool(self) -> None:
        topic = self._random.choice(self._topics)
        request = self._random.choice(list(self._tools(topic)))
        broker_id = self._coordinators.find(topic.group_id)
        if broker_id is not None:
            self._note("a tool asks %d for %s", broker_id, request)
            self._coordinators.ask(None, broker_id, request, lambda result: None)

    def _tools(self, topic: ConsumedTopic) -> Iterator[GroupRequest[Any]]:
        group_id = topic.group_id
        partition = consumed(self._random.randrange(topic.partitions))
        former = TopicPartition(FORMER_TOPIC, 0)
        offsets = {name: topic.next_position() for name in (partition, former)}
        yield CommitOffsets(group_id, offsets)  # a reset
        yield DeleteOffsets(group_id, (partition, former))
        yield DeleteGroup(group_id)
        yield DescribeGroup(group_id)
        yield ListGroups()
        yield FetchOffsets(group_id, None)
        yield FetchOffsets(group_id, (partition, former))
        for consumer in self._living(topic):
            if consumer.instance_id is not None:
                yield LeaveGroup(group_id, (LeavingMember("", consumer.instance_id),))
            if consumer.assigned:  # with its last generation, which may have ended long ago
                yield CommitOffsets(
                    group_id,
                    {partition: topic.next_position()},
                    consumer.member_id,
                    consumer.generation_id - self._random.choice((0, 1)),
                    consumer.instance_id,
                )

    # --- the end ---

    def rest(self) -> None:
        """Commit nothing more: a cluster in which records are written is never at rest."""
        self._create_topic()
        self._world.is_at_rest = True
        for topic in self._topics:
            topic.is_busy = False
        self._processes.wake_all()

    def finish(self) -> None:
        """Check that groups whose coordinator can write become stable, twice; positions last."""
        self._await_stable()  # a leader that came back may not know that its topic was expanded
        for topic in self._topics:
            topic.partitions += 1
            living = self._living(topic)
            if living and not any(consumer.leads for consumer in living):
                self._change_subscription(living[0])  # its leader is an old process
        self._await_stable(are_all_assigned=True)
        for consumer in self._living():
            if consumer.is_stable and consumer.assigned:
                consumer.commit()
        self._cluster.run_for(ROUND_MS * 4)
        for consumer in self._living():
            if consumer.is_stable and consumer.assigned:
                consumer.fetch()
        self._cluster.run_until_quiet()
        for broker in self._cluster.brokers.values():
            assert broker.groups is not None
            broker.groups.assert_owes_nothing()
        for number in range(self._world.partitions):
            leader = self._coordinators.able_leader(TopicPartition(GROUP_METADATA_TOPIC, number))
            if leader is not None and leader.groups is not None:
                self.history.check_memory(leader.groups, number)

    def _await_stable(self, *, are_all_assigned: bool = False) -> None:
        problem = ""
        for _ in range(ROUNDS):
            problem = next(self._problems(are_all_assigned=are_all_assigned), "")
            if not problem:
                return
            self._cluster.run_for(ROUND_MS)
        raise AssertionError(f"GroupsBecomeStable: {problem}")

    def _problems(self, *, are_all_assigned: bool) -> Iterator[str]:
        for topic in self._topics:
            name = self._coordinators.partition_of(topic.group_id)
            leader = self._coordinators.able_leader(name)
            if leader is None or leader.groups is None:
                continue
            group = leader.groups.machine.manager.groups.get(topic.group_id)
            living = self._living(topic)
            known = {} if group is None else group.members
            if not living:
                if known:
                    yield f"{topic}: its members are dead: {list(known)}"
                continue
            where = f"{topic}: {group and group.state}, {sorted(known)}"
            if any(not c.is_stable for c in living):
                yield f"{where}: not stable: {[c for c in living if not c.is_stable]}"
            if {c.member_id for c in living} != known.keys():
                yield f"{where}: other members: {living}"
            held = sorted(number for consumer in living for number in consumer.assigned)
            is_right = held == list(range(topic.partitions)) or not are_all_assigned
            if len(held) != len(set(held)) or not is_right:
                yield f"{where}: assigned are {held}"
