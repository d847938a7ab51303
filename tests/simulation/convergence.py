"""What must hold in a cluster at rest without faults: S9–S11, and L1–L4.

A broker may be missing. Work that needs it then *waits*: deletions of topics and moves of
partitions with a replica on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from regent.core.controller.context import ControllerContext
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    BrokerInfo,
    LeaderAndIsr,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.replication.partition import Role
from regent.zk.client.operations import Znode
from regent.zk.codecs.topic_znodes import TopicZNodeData
from regent.zk.znodes import (
    BrokerIdZNode,
    ControllerEpochZNode,
    ControllerZNode,
    DeleteTopicsTopicZNode,
    DeleteTopicsZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.configurations import assert_uses_configurations
from tests.simulation.kafka_protocol import kafka_endpoint
from tests.support.znode_table import rows_of

MAX_IMBALANCE = 0.10
CHILDLESS = (
    "/admin/delete_topics",
    "/admin/reassign_partitions",
    "/admin/preferred_replica_election",
    "/isr_change_notification",
    "/log_dir_event_notification",
)


def assert_converged(cluster: Cluster) -> None:
    """Check a cluster without faults and without pending work; raises ``AssertionError``."""
    nodes = cluster.zookeeper.snapshot()
    strange = [path for path in nodes if path != "/" and not rows_of(path)]
    assert not strange, f"these znodes are not in the table: {strange}"
    _assert_registered(cluster, nodes)
    controller = _the_controller(cluster, nodes)
    topics = _topics(nodes)
    waiting = {t for t, stored in topics.items() if not _is_complete(stored, cluster)}
    being_deleted = {topic for topic in waiting if DeleteTopicsTopicZNode.path(topic) in nodes}
    _assert_no_work_is_left(nodes, topics, controller, waiting)
    _assert_memory_equals_zookeeper(cluster, controller.controller.context, topics, being_deleted)
    registered = _registered(nodes)
    reached = {b: channel.endpoint for b, channel in controller.channels.items()}
    wanted = {
        b: info.control_endpoint or cluster.brokers[b].kafka_endpoint
        for b, info in registered.items()
    }
    assert reached == wanted, f"the controller reaches brokers at {reached}, not at {wanted}"
    topics = {topic: stored for topic, stored in topics.items() if topic not in being_deleted}
    for broker in cluster.brokers.values():
        assert not broker.unanswered, (
            f"broker {broker.broker_id} has not answered {broker.unanswered}"
        )
        assert all(channel.is_idle for channel in broker.channels.values())
        removed = controller.controller.context.removed_replicas.get(broker.broker_id, set())
        _assert_replicas_as_assigned(broker, topics, being_deleted, removed)
        _assert_knows_the_cluster(cluster, broker, controller, topics, being_deleted)
        _assert_knows_addresses(broker, registered)
        if not broker.is_of_kafka:
            assert_uses_configurations(cluster, broker)
    for topic, stored in topics.items():
        for number, assignment in stored.partitions.items():
            _assert_partition_converged(cluster, TopicPartition(topic, number), assignment)
    if controller.settings.auto_leader_rebalance_enable:
        _assert_balanced(controller.controller.context)


def _assert_registered(cluster: Cluster, nodes: Mapping[str, Znode]) -> None:
    """S11: every live process has the registration of its id."""
    prefix = BrokerIdZNode.path(0)[:-1]
    registered = {int(path.removeprefix(prefix)) for path in nodes if path.startswith(prefix)}
    assert registered == set(cluster.brokers), f"registered {registered}"
    for broker_id, broker in cluster.brokers.items():
        stat = nodes[BrokerIdZNode.path(broker_id)].stat
        assert stat.ephemeral_owner == broker.session.session_id, f"{broker_id}: another's"
        assert stat.czxid == broker.replica_manager.broker_epoch, (
            f"{broker_id}: another broker epoch"
        )


def _registered(nodes: Mapping[str, Znode]) -> dict[BrokerId, BrokerInfo]:
    prefix = BrokerIdZNode.path(0)[:-1]
    ids = [int(path.removeprefix(prefix)) for path in nodes if path.startswith(prefix)]
    return {b: BrokerIdZNode.decode(nodes[BrokerIdZNode.path(b)].data, b) for b in ids}


def _assert_knows_addresses(
    broker: SimulatedBroker, registered: Mapping[BrokerId, BrokerInfo]
) -> None:
    for broker_id, info in registered.items():
        row = broker.cache.snapshot.brokers[broker_id]
        if broker.is_of_kafka:  # it knows the listeners of Kafka's protocol only
            info = replace(info, control_endpoint=None, replication_endpoint=None)
        known = row.control_endpoint, row.replication_endpoint
        known_ports = [(e.host, e.port) for e in row.endpoints]
        assert (known, known_ports) == (
            (info.control_endpoint, info.replication_endpoint),
            [(e.host, e.port) for e in info.endpoints],
        ), f"broker {broker.broker_id} knows {row}, registered is {info}"
    followed = broker.replica_manager.leaders_to_fetch_from()
    for leader, endpoint in followed.items():
        named = None if broker.is_of_kafka else registered[leader].replication_endpoint
        wanted = named or kafka_endpoint(registered[leader])
        assert endpoint == wanted, f"fetches from {endpoint}"


def _the_controller(cluster: Cluster, nodes: Mapping[str, Znode]) -> SimulatedBroker:
    active = cluster.active_controllers
    assert len(active) == 1, f"SingleController: {[b.broker_id for b in active]} are active"
    assert ControllerZNode.decode(nodes[ControllerZNode.PATH].data) == active[0].broker_id
    context, node = active[0].controller.context, nodes.get(ControllerEpochZNode.PATH)
    # A controller notices a change of the epoch by others with its next write.
    if node is not None and node.stat.version == context.epoch_zk_version:
        assert context.epoch == ControllerEpochZNode.decode(node.data)
    assert active[0].channels.keys() == cluster.brokers.keys(), (
        "the controller has no channel to some broker"
    )
    return active[0]


def _topics(nodes: Mapping[str, Znode]) -> dict[str, TopicZNodeData]:
    return {
        path.rpartition("/")[2]: TopicZNode.decode(node.data)
        for path, node in nodes.items()
        if path.rpartition("/")[0] == "/brokers/topics"
    }


def _is_complete(stored: TopicZNodeData, cluster: Cluster) -> bool:
    """Whether all brokers with a replica of the topic are up."""
    replicas = {r for assignment in stored.partitions.values() for r in assignment.replicas}
    return replicas <= cluster.brokers.keys()


def _assert_no_work_is_left(
    nodes: Mapping[str, Znode],
    topics: Mapping[str, TopicZNodeData],
    controller: SimulatedBroker,
    waiting: Collection[str],
) -> None:
    """L3: no request is pending, and nothing is left of deleted topics."""
    left = [p for p in nodes if any(p.startswith(f"{path}/") for path in CHILDLESS)]
    left += [p for p in CHILDLESS[1:3] if p in nodes]
    allowed = {DeleteTopicsTopicZNode.path(topic) for topic in waiting}
    if ReassignPartitionsZNode.PATH in nodes:
        wanted = ReassignPartitionsZNode.decode(nodes[ReassignPartitionsZNode.PATH].data)
        if {partition.topic for partition in wanted} <= set(waiting):
            allowed.add(ReassignPartitionsZNode.PATH)
    assert set(left) <= allowed, f"still requested: {left}"
    ids = [stored.topic_id for stored in topics.values()]
    assert None not in ids, f"a topic has no id: {topics}"
    assert len(set(ids)) == len(ids), f"two topics have one id: {topics}"
    moving = {
        TopicPartition(topic, number)
        for topic, stored in topics.items()
        for number, assignment in stored.partitions.items()
        if assignment.is_being_reassigned
    }
    assert {partition.topic for partition in moving} <= set(waiting), (
        f"still being reassigned: {moving}"
    )
    context = controller.controller.context
    being_deleted = {topic for topic in waiting if DeleteTopicsTopicZNode.path(topic) in left}
    assert context.topics_to_be_deleted == being_deleted, f"deletes {context.topics_to_be_deleted}"
    assert context.topics_with_deletion_started <= being_deleted, (
        context.topics_with_deletion_started
    )
    assert context.topics_ineligible_for_deletion == being_deleted, (
        context.topics_ineligible_for_deletion
    )
    assert context.partitions_being_reassigned == moving, context.partitions_being_reassigned
    assert not context.shutting_down_broker_ids, context.shutting_down_broker_ids


def _assert_replicas_as_assigned(
    broker: SimulatedBroker,
    topics: Mapping[str, TopicZNodeData],
    being_deleted: Collection[str],
    removed: Collection[TopicPartition],
) -> None:
    """S10: replicas and logs are those assigned, and have the present id of the topic."""
    assigned = {
        TopicPartition(topic, number): stored.topic_id
        for topic, stored in topics.items()
        for number, assignment in stored.partitions.items()
        if broker.broker_id in assignment.replicas
    }
    replicas = broker.replica_manager.partitions
    hosted = {name: p.topic_id for name, p in replicas.items() if name.topic not in being_deleted}
    logs = {name: i for name, i in broker.disk.hosted().items() if name.topic not in being_deleted}
    where = f"broker {broker.broker_id}"
    if broker.is_of_kafka:
        # No controller asks again for a deletion that its predecessor asked for, and a FULL request
        # lets a broker of Kafka in ZooKeeper mode delete nothing.
        may_stay = hosted.keys() - assigned.keys() - set(removed)
        hosted = {name: topic_id for name, topic_id in hosted.items() if name not in may_stay}
        logs = {name: topic_id for name, topic_id in logs.items() if name in assigned}
    assert hosted == assigned, (
        f"{where} hosts other replicas than assigned: {_difference(hosted, assigned)}"
    )
    assert logs == assigned, f"{where} has other logs than assigned: {_difference(logs, assigned)}"


def _difference(
    actual: Mapping[TopicPartition, str | None], expected: Mapping[TopicPartition, str | None]
) -> list[str]:
    return [
        f"{name}: {actual.get(name, 'none')} instead of {expected.get(name, 'none')}"
        for name in sorted(actual.keys() | expected.keys())
        if actual.get(name, "none") != expected.get(name, "none")
    ]


def _assert_knows_the_cluster(
    cluster: Cluster,
    broker: SimulatedBroker,
    controller: SimulatedBroker,
    topics: Mapping[str, TopicZNodeData],
    being_deleted: Collection[str],
) -> None:
    """S9: the metadata cache is that of the active controller."""
    snapshot = broker.cache.snapshot
    epochs = {b.broker_id: b.broker_epoch for b in snapshot.brokers.values()}
    assert broker.is_of_kafka or epochs == controller.controller.context.live_broker_epochs, (
        f"broker {broker.broker_id} has these live brokers: {epochs}"
    )
    assert snapshot.controller_id == controller.broker_id, (
        f"{broker.broker_id}: it has another controller"
    )
    assert broker.replica_manager.controller_epoch == controller.controller.context.epoch
    assert broker.is_of_kafka or snapshot.is_complete, (
        f"{broker.broker_id} waits for the list of all partitions"
    )
    partitions = {
        partition
        for topic, stored in topics.items()
        for partition in (TopicPartition(topic, number) for number in stored.partitions)
        if cluster.state(partition) is not None
    }
    ids = {partition.topic: topics[partition.topic].topic_id for partition in partitions}
    known = {partition for partition in snapshot.partitions if partition.topic not in being_deleted}
    known_ids = {
        t: topic_id for t, topic_id in snapshot.topic_ids.items() if t not in being_deleted
    }
    if broker.is_of_kafka:  # it forgets no topic that vanished between two controllers
        removed = controller.controller.context.removed_topics
        known = {p for p in known if p in partitions or p.partition in removed.get(p.topic, ())}
        known_ids = {t: i for t, i in known_ids.items() if t in ids or t in removed}
    assert known == partitions, (
        f"broker {broker.broker_id} has missing or extra partitions {known ^ partitions}"
    )
    if broker.is_of_kafka:  # UpdateMetadata 6 has no ids
        ids = {topic: topic_id for topic, topic_id in ids.items() if known_ids.get(topic)}
        known_ids = {topic: topic_id for topic, topic_id in known_ids.items() if topic_id}
    assert known_ids == ids, f"broker {broker.broker_id}: {snapshot.topic_ids}"


def _is_sound(cluster: Cluster, broker_id: BrokerId, partition: TopicPartition) -> bool:
    disk = cluster.disks[broker_id]
    return disk.get(partition) is not None and disk.suspects().end_of(partition) is None


def _assert_partition_converged(
    cluster: Cluster, partition: TopicPartition, assignment: ReplicaAssignment
) -> None:
    live = set(cluster.brokers) & set(assignment.replicas)
    stored = cluster.state(partition)
    if stored is None:
        assert not live, f"{partition} has never had a leader"
        return
    now = stored.leader_and_isr
    members = {*now.isr, *now.eligible_leader_replicas}
    waited_for = set(assignment.replicas) & members - live
    sound = {b for b in live & members if _is_sound(cluster, b, partition)}
    if now.leader == NO_LEADER and waited_for and not sound:
        pass  # the missing broker may have what all others lost
    elif live & set(now.isr):  # L2, L4
        assert now.leader in live, f"{partition} could be led: {now}"
        assert set(now.isr) == live, f"{partition}: {live} live, in sync are {now}"
    else:
        assert now.leader == -1, f"{partition} is led by a dead broker: {now}"
    for broker_id, broker in cluster.brokers.items():
        row = broker.cache.snapshot.partitions[partition]
        believed = (row.leader, row.leader_epoch, row.isr, row.partition_epoch, row.replicas)
        assert believed == (
            now.leader,
            now.leader_epoch,
            now.isr,
            now.partition_epoch,
            assignment.replicas,
        ), f"broker {broker_id} believes {partition} {row}, ZooKeeper says {now} {assignment}"
        assert set(row.offline_replicas) == set(assignment.replicas) - live, f"{partition}: {row}"
        hosted = broker.replica_manager.partitions.get(partition)
        if hosted is None or broker_id not in assignment.replicas:
            continue
        where = f"broker {broker_id} has {hosted}, ZooKeeper says {now}"
        assert (hosted.leader, hosted.leader_epoch) == (now.leader, now.leader_epoch), where
        if now.leader == broker_id:
            assert hosted.role is Role.LEADER, where
            assert sorted(hosted.isr) == sorted(now.isr), where
            assert hosted.partition_epoch == now.partition_epoch, where
        elif now.leader >= 0:
            assert hosted.role is Role.FOLLOWER, where


def _assert_memory_equals_zookeeper(
    cluster: Cluster,
    context: ControllerContext,
    topics: Mapping[str, TopicZNodeData],
    being_deleted: Collection[str],
) -> None:
    """S9: the controller has what ZooKeeper has, and its metrics are right."""
    assert set(context.all_topics) == set(topics), f"it knows {list(context.all_topics)}"
    assert not context.bad_topics, context.bad_topics
    assert not context.unreadable_partitions, context.unreadable_partitions
    offline = imbalanced = 0
    for topic, stored in topics.items():
        assert context.topic_id(topic) == stored.topic_id
        known = {tp.partition: a for tp, a in context.partition_assignments(topic).items()}
        assert known == dict(stored.partitions), f"{topic}: {known}, ZooKeeper says {stored}"
        for number, assignment in stored.partitions.items():
            partition = TopicPartition(topic, number)
            leadership = cluster.state(partition)
            remembered = context.partition_leadership_info(partition)
            known_state = remembered and remembered.leader_and_isr
            stored_state = leadership and leadership.leader_and_isr
            # The controller does not read the last ISR of a topic queued for deletion.
            is_known = known_state == stored_state or topic in being_deleted
            assert is_known, f"{partition}: it knows {remembered}"
            is_started = topic in context.topics_with_deletion_started
            is_offline = context.partition_state(partition) is PartitionState.OFFLINE
            offline += is_offline and not is_started
            if topic in being_deleted:
                continue
            if known_state is not None:
                imbalanced += _is_imbalanced(known_state, assignment)
            for replica in set(assignment.replicas) - set(assignment.adding_replicas):
                state = context.replica_state(PartitionAndReplica(partition, replica))
                is_online = state is ReplicaState.ONLINE
                # A missing broker is online for a partition that was created while it was missing.
                assert is_online or replica not in cluster.brokers, (
                    f"{partition}, {replica}: {state}"
                )
    assert context.offline_partition_count == offline, context.offline_partition_count
    assert context.preferred_replica_imbalance_count == imbalanced, (
        f"it counts {context.preferred_replica_imbalance_count} imbalanced, not {imbalanced}"
    )


def _is_imbalanced(now: LeaderAndIsr, assignment: ReplicaAssignment) -> bool:
    """Whether the first replica could lead and does not; one still copying could not."""
    first = assignment.replicas[0]
    may_lead = first not in assignment.adding_replicas
    return now.leader != first if may_lead else first in now.isr


def _assert_balanced(context: ControllerContext) -> None:
    """Preferred replicas lead, except for the share that the settings tolerate."""
    totals: Counter[int] = Counter()
    led_by_others: dict[int, list[TopicPartition]] = {}
    movable: set[TopicPartition] = set()
    for partition in context.all_partitions():
        leadership = context.partition_leadership_info(partition)
        assignment = context.partition_full_replica_assignment(partition)
        if not assignment.replicas or partition.topic in context.topics_to_be_deleted:
            continue
        first = assignment.replicas[0]
        totals[first] += 1
        if leadership is not None and leadership.leader_and_isr.leader != first:
            led_by_others.setdefault(first, []).append(partition)
            is_sound = context.suspect_end(first, partition) is None
            could_lead = is_sound and first in leadership.leader_and_isr.isr
            if could_lead and first not in assignment.adding_replicas:
                movable.add(partition)
    for broker_id, partitions in led_by_others.items():
        is_usable = broker_id in context.live_broker_ids and not movable.isdisjoint(partitions)
        share = len(partitions) / totals[broker_id]
        assert not is_usable or share <= MAX_IMBALANCE, f"broker {broker_id}: {partitions}"


def assert_online_under_kafka(cluster: Cluster) -> None:
    """Check that a controller of Kafka at rest uses every replica whose broker has its log.

    No partition is without a leader while a member of its ISR lives and has its log. Of a topic
    that waits for its deletion no leader is elected, so a replica that has refused stays failed. A
    topic without an id, which somebody has taken away, waits for a controller of this project.
    """
    going = set(cluster.zookeeper.children_of(DeleteTopicsZNode.PATH))
    for ruler in cluster.kafka_controllers:
        for broker_id, broker in cluster.brokers.items():
            failed = {
                name
                for name in ruler.ruler.failed_replicas(broker_id)
                if not broker.disk.is_offline(name) and name.topic not in going
            }
            assert not failed, f"{ruler.broker_id} of Kafka does not use {failed} of {broker_id}"
        for topic, stored in _topics(cluster.zookeeper.snapshot()).items():
            if topic in going or stored.topic_id is None:
                continue
            for number in stored.partitions:
                name = TopicPartition(topic, number)
                state = cluster.state(name)
                if state is None or state.leader_and_isr.leader != NO_LEADER:
                    continue
                able = [
                    b
                    for b in state.leader_and_isr.isr
                    if b in cluster.brokers and not cluster.disks[b].is_offline(name)
                ]
                assert not able, f"{name} has no leader, although {able} could lead: {state}"
