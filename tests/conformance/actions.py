"""The actions of a scenario: every step that is not an expectation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from regent.core.admin.admin_requests import NewTopic
from regent.core.controller.events import TopicUncleanLeaderElectionEnable
from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, ReplicaAssignment, TopicPartition
from regent.core.ports import ControllerEpoch
from regent.core.protocol.controller import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.zk.client.operations import Committed, Create
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import (
    ConfigEntityZNode,
    ControllerZNode,
    LogDirEventNotificationSequenceZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.conformance.fields import Fields, UnknownInCaseError, check_words, one_of, partition
from tests.conformance.record_clients import RecordClient, StandingConsumer, throttle
from tests.conformance.stage import Stage
from tests.conformance.waits import Waits
from tests.support.fake_zookeeper import FakeZooKeeper

OTHER_CONTROLLER = 12345
_REGISTRATION_EFFECTS = "zkversion version controller epoch znode advance advances grow grows"
RECORDS_TO_MOVE = 10
_OTHERS = "first second third next other another broker than not controller neither nor any"


def _letters(name: str | None) -> str:
    """Return a name in a common form: exceptions and error codes are spelled differently."""
    return re.sub("[^a-z]|exception$", "", (name or "").lower())


class Actions(Waits):
    """Runs one step after the other."""

    def __init__(self, stage: Stage, *, reassigns_by_znode: bool = False) -> None:
        super().__init__(stage)
        self.records = RecordClient(stage.cluster)
        self.moved: list[TopicPartition] = []
        self.deletion_requested: set[str] = set()  # topics queued for deletion
        self._consumers: dict[str, StandingConsumer] = {}
        self._reassigns_by_znode = reassigns_by_znode
        self.by_op: Mapping[str, Callable[[Fields], None]] = {
            op.removeprefix("do_"): getattr(self, op) for op in dir(self) if op.startswith("do_")
        }

    # --- processes ---

    def do_start(self, step: Fields) -> None:
        """Start all brokers."""
        self.stage.start_all()

    def do_startup(self, step: Fields) -> None:
        """Start one broker, or the stopped ones."""
        name = step.take("broker")
        if name in ("both", "all"):
            for broker_id in [b for b in self.stage.start_order if b not in self.cluster.brokers]:
                self.stage.start(broker_id)
        else:
            self.stage.start(self.broker(name))

    def do_shutdown(self, step: Fields) -> None:
        """Stop one broker, or all."""
        name, mode = step.take("broker"), step.take("mode", None)
        if self.cluster.active_controllers:
            self.old_controller = self.stage.controller.broker_id
        stopping = list(self.cluster.brokers) if name == "all" else [self.broker(name)]
        for broker_id in stopping:
            self.stopped.append(broker_id)
            self.stage.shut_down(broker_id, mode)

    def do_bounce(self, step: Fields) -> None:
        """Stop and start one broker."""
        broker_id = self.broker(step.take("broker"))
        self.stage.shut_down(broker_id, step.take("mode", None))
        self.stage.start(broker_id)

    def do_hold_event_thread(self, step: Fields) -> None:
        """Block the controller."""
        self.stage.hold_events()

    def do_release_event_thread(self, step: Fields) -> None:
        """Unblock the controller."""
        self.stage.release_events()

    def do_fail_log_dir(self, step: Fields) -> None:
        """Fail the log directory that has a partition's log."""
        broker = self.cluster.brokers[self.broker(step.take("broker"))]
        hosted = partition(step.take("hosting"))
        self.stage.eventually(f"{hosted} is there", lambda: hosted in broker.disk.hosted())
        broker.notice_failed_directory()
        assert broker.disk.is_offline(hosted)
        prefix = LogDirEventNotificationSequenceZNode.PATH_PREFIX
        data = LogDirEventNotificationSequenceZNode.encode(broker.broker_id)
        assert isinstance(broker.session.multi([Create(prefix, data, sequential=True)]), Committed)

    # --- controllers ---

    def do_delete_controller_znode(self, step: Fields) -> None:
        """Depose the active controller."""
        self.cluster.zookeeper.remove(ControllerZNode.PATH)

    def do_register_controller(self, step: Fields) -> None:
        """Elect another controller without notice to the present one."""
        name = step.take("broker")
        for effect in step.expected("effect"):
            check_words(effect, "the effect", _REGISTRATION_EFFECTS)
        broker_id = OTHER_CONTROLLER if name == "other id" else self.broker(name)
        store = ZkControllerStore(FakeZooKeeper(self.cluster.zookeeper))
        current = store.read_controller_epoch() or ControllerEpoch(0, 0)
        found = store.register_controller(broker_id, current, self.cluster.now_ms)
        assert found == ControllerEpoch(current.epoch + 1, current.zk_version + 1)

    def do_controlled_shutdown_api(self, step: Fields) -> None:
        """Request a controlled shutdown of a broker that stays."""
        broker_id = self.broker(step.take("broker"))
        registered = self.stage.context.live_broker_epochs.get(broker_id, -1)
        epoch = step.take("broker_epoch", "registered")
        if isinstance(epoch, str):
            epoch = registered + int(epoch.removeprefix("registered") or 0)
        response = self.cluster.request(ControlledShutdownRequest(broker_id, epoch))
        assert isinstance(response, ControlledShutdownResponse)
        assert response.error_code.name == (step.take("expect_error", None) or "NONE")
        for remaining in step.expected("expect_remaining"):
            left = [str(topic_partition) for topic_partition in response.remaining_partitions]
            assert len(left) == remaining if isinstance(remaining, int) else left == remaining

    # --- topics ---

    def do_create_topic(self, step: Fields) -> None:
        """Create a topic, or a further partition of one, and wait for its leader."""
        topic_partition, replicas = (
            partition(step.take("tp")),
            self.stage.brokers(step.take("replicas")),
        )
        for error in step.expected("expect_error"):
            new = {
                topic_partition.topic: NewTopic(
                    "x" * 22, {0: ReplicaAssignment(tuple(replicas))}, {}
                )
            }
            outcome = self.stage.admin.topics.create_topics(new)[topic_partition.topic]
            assert outcome.error_code.name == error == "TOPIC_ALREADY_EXISTS"
            return
        self._put_partitions(topic_partition, tuple(replicas))
        if set(replicas) & set(self.cluster.brokers):
            self.stage.eventually(
                f"{topic_partition} has a leader", lambda: self._is_led(topic_partition)
            )

    def do_create_topic_zk(self, step: Fields) -> None:
        """Write a topic's znode."""
        self._put_partitions(partition(step.take("tp")), (self.stage.start_order[0],))

    def _put_partitions(
        self, topic_partition: TopicPartition, replicas: tuple[BrokerId, ...]
    ) -> None:
        stored = self.stage.topic(topic_partition.topic)
        known = {} if stored is None else {p: a.replicas for p, a in stored.partitions.items()}
        for index in range(topic_partition.partition):
            known.setdefault(index, replicas)
        known[topic_partition.partition] = replicas
        self.cluster.rewrite_topic(topic_partition.topic, known)
        if topic_partition.topic not in self.stage.topics:
            self.stage.topics.append(topic_partition.topic)

    def _is_led(self, topic_partition: TopicPartition) -> bool:
        leads = self.stage.leads(topic_partition)
        return leads is not None and leads[0] != NO_LEADER

    def do_write_assignment(self, step: Fields) -> None:
        """Overwrite a topic's assignment."""
        self.cluster.rewrite_topic(
            step.take("topic"),
            {
                int(index): tuple(self.stage.brokers(replicas))
                for index, replicas in step.take("assignment").items()
            },
        )

    def do_add_partitions_zk(self, step: Fields) -> None:
        """Add partitions to the first topic, during other operations."""
        topic = self.stage.topics[0]
        stored = self.stage.topic(topic)
        if stored is None:
            return  # it is deleted already
        grown = dict(stored.partitions)
        for index, replicas in step.take("manual").items():
            grown[int(index)] = ReplicaAssignment(tuple(self.stage.brokers(replicas)))
        data = TopicZNode.encode(stored.topic_id, grown)
        self.cluster.zookeeper.put(TopicZNode.path(topic), data)

    def do_create_partitions_api(self, step: Fields) -> None:
        """Request more partitions; a topic that is being deleted gets none."""
        topic, total = self.stage.topics[0], step.take("total")
        assert step.take("outcome", "ignored by test") == "ignored by test"
        stored = self.stage.topic(topic)
        assert stored is not None
        first = stored.partitions[0]
        added = dict.fromkeys(range(len(stored.partitions), total), first)
        self.stage.admin.topics.add_partitions({topic: added})

    def do_delete_topic_zk(self, step: Fields) -> None:
        """Write the request to delete a topic."""
        topic = step.take("topic")
        self.deletion_requested.add(topic)
        if topic in INTERNAL_TOPICS:  # the tool refuses
            assert step.take("expect_error") == "ADMIN_OPERATION"
            return
        error_code, message = self.stage.admin.topics.mark_for_deletion([topic])[topic]
        found = None if error_code is Errors.NONE else error_code.name
        if message and found is None:
            found = "TOPIC_ALREADY_MARKED_FOR_DELETION"
        assert _letters(found) == _letters(step.take("expect_error", None))

    def do_delete_znode(self, step: Fields) -> None:
        """Delete a node with all below it."""
        path = step.take("path")
        below = [p for p in self.stage.nodes if p == path or p.startswith(f"{path}/")]
        assert below
        for node in reversed(below):
            self.cluster.zookeeper.remove(node)

    def do_set_topic_config(self, step: Fields) -> None:
        """Allow or forbid unclean elections of the first topic, as its config listener does."""
        topic, key = self.stage.topics[0], "unclean.leader.election.enable"
        value = one_of(str(step.take(key)).lower(), {"true": "true", "false": "false"}, key)
        if step.take("topic", topic) != topic:
            raise UnknownInCaseError("a configuration of another topic than the first")
        path = ConfigEntityZNode.path("topics", topic)
        self.cluster.zookeeper.put(path, ConfigEntityZNode.encode({key: value}))
        if value == "true":
            for broker in self.cluster.active_controllers:
                broker.tell(TopicUncleanLeaderElectionEnable(topic))

    # --- moves and elections ---

    def do_reassign_zk(self, step: Fields) -> None:
        """Write a reassignment request."""
        topic_partition, target = (
            partition(step.take("tp")),
            self.stage.brokers(step.take("target")),
        )
        self._write_reassignment(topic_partition, target)

    def _write_reassignment(self, topic_partition: TopicPartition, target: list[BrokerId]) -> None:
        node = self.stage.nodes.get(ReassignPartitionsZNode.PATH)
        wanted = {} if node is None else dict(ReassignPartitionsZNode.decode(node.data))
        wanted[topic_partition] = tuple(target)
        data = ReassignPartitionsZNode.encode(wanted)
        self.cluster.zookeeper.put(ReassignPartitionsZNode.PATH, data)

    def do_reassign_api(self, step: Fields) -> None:
        """Send the controller a request to move a partition."""
        topic_partition, target = (
            partition(step.take("tp")),
            self.stage.brokers(step.take("target")),
        )
        expected = step.take("expect_error", None)
        self.moved.append(topic_partition)
        if self._reassigns_by_znode and expected is None:
            self._write_reassignment(topic_partition, target)
            return
        assert self._reassign({topic_partition: tuple(target)}) == {
            topic_partition: expected or "NONE"
        }

    def _reassign(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, str]:
        response = self.cluster.request(AlterPartitionReassignmentsRequest.of(targets))
        assert isinstance(response, AlterPartitionReassignmentsResponse)
        assert response.error_code == Errors.NONE
        return {p: result.error_code.name for p, result in response.results.items()}

    def do_cancel(self, step: Fields) -> None:
        """Cancel every requested move."""
        errors = self._reassign(dict.fromkeys(self.moved))
        cancelled = {
            str(topic_partition) for topic_partition, error in errors.items() if error == "NONE"
        }
        assert cancelled == set(step.take("expect_cancelled"))
        assert set(errors.values()) <= {"NONE", "NO_REASSIGNMENT_IN_PROGRESS"}

    def do_throttle(self, step: Fields) -> None:
        """Throttle the replication of partitions with records."""
        rate = step.take("bytes_per_sec")
        for topic in self.stage.topics:
            stored = self.stage.topic(topic)
            assert stored is not None
            for number in stored.partitions:
                for record in range(RECORDS_TO_MOVE):
                    self.records.produce(TopicPartition(topic, number), f"{record}")
        every = dict.fromkeys(self.stage.topics, "*")
        throttle(self.cluster, {"leader": every, "follower": every}, rate)

    def do_preferred_zk(self, step: Fields) -> None:
        """Write a request for preferred elections."""
        data = PreferredReplicaElectionZNode.encode(map(partition, step.take("tps")))
        self.cluster.zookeeper.put(PreferredReplicaElectionZNode.PATH, data)

    # --- names and records ---

    def do_name(self, step: Fields) -> None:
        """Name the leader of the first topic, and the other broker."""
        leader = self.leader()
        other = next(b for b in self.stage.ids.values() if b != leader)
        meanings = {"elected leader": leader, "the leader": leader, "the other broker": other}
        for name, meaning in step.rest().items():
            if name != "op":
                self.stage.names[name] = one_of(meaning, meanings, f"the meaning of {name}")

    def do_define(self, step: Fields) -> None:
        """Give names to brokers: the remaining ones, in sequence."""
        meanings = {name: meaning for name, meaning in step.rest().items() if name != "op"}
        named = {
            broker_id
            for name, broker_id in self.stage.ids.items()
            if any(str(name) in re.findall(r"\w+", str(text)) for text in meanings.values())
        }
        others = iter(b for b in self.stage.ids.values() if b not in named)
        for name, meaning in meanings.items():
            is_name = isinstance(meaning, int) or meaning in self.stage.ids
            if not is_name:
                known = " ".join([_OTHERS, *(str(one).lower() for one in self.stage.ids)])
                check_words(meaning, f"the meaning of {name}", known)
            self.stage.names[name] = self.stage.broker(meaning) if is_name else next(others)

    def consumer(self, step: Fields) -> StandingConsumer:
        """Return the consumer of a step; it reads the first topic from the beginning."""
        name = step.take("consumer", "the consumer")
        if name not in self._consumers:
            read = TopicPartition(self.stage.topics[0], 0)
            self._consumers[name] = StandingConsumer(self.records, read)
        return self._consumers[name]

    def do_consume(self, step: Fields) -> None:
        """Let a consumer read up to the present high watermark."""
        self.consumer(step).read()

    def do_produce(self, step: Fields) -> None:
        """Produce a record to the first topic."""
        topic_partition = TopicPartition(self.stage.topics[0], 0)
        for error in step.expected("expect_error"):
            assert self.records.try_to_produce(topic_partition, step.take("value")).name == error
            return
        self.records.produce(topic_partition, step.take("value"))
