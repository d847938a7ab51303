"""A cluster in which both kinds of brokers have replicas, and Kafka's own tools for it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer
from confluent_kafka import TopicPartition as Position
from kazoo.exceptions import NoNodeError

from regent.core.model import BrokerId, TopicPartition
from regent.testing.waits import eventually
from tests.kafka_brokers.genuine_broker import command_of_tool
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster
from tests.support.record_batches import values_of

LOG_DIRS: Final = ("data", "more")
BATCH: Final = 4
ATTEMPTS: Final = 4
RULERS: Final = ("kafka", "ours")


class State(NamedTuple):
    """A partition in ZooKeeper."""

    leader: BrokerId
    isr: set[BrokerId]
    replicas: list[BrokerId]


class MixedCluster(NamedTuple):
    """Brokers ``kafka`` and ``ours``, and an ``other`` one of either kind."""

    cluster: MovedCluster
    version: str
    kafka: BrokerId
    ours: BrokerId
    other: BrokerId

    def ruler(self, kind: str) -> BrokerId:
        """Return the broker that rules when this kind does: the ``other`` one if it is of it."""
        of_kind = {b for b in BROKERS if (b in self.cluster.ours) == (kind == "ours")}
        return max(of_kind, key=lambda broker: (broker == self.other, broker))

    def let_rule(self, kind: str) -> BrokerId:
        """Let a broker of this kind rule all three."""
        ruler = self.ruler(kind)
        self.cluster.let_rule(ruler, *BROKERS)
        return ruler

    def tool(self, via: BrokerId, name: str, *options: str) -> str:
        """Run a tool of Kafka that asks one broker first; it must succeed."""
        server = self.cluster.kafkas[via].bootstrap_server
        words = command_of_tool(self.version, name, "--bootstrap-server", server, *options)
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
        assert ended.returncode == 0, (options, ended.stdout, ended.stderr)
        return ended.stdout

    def create(self, via: BrokerId, topic: str, *placed: Sequence[BrokerId], **config: str) -> None:
        """Create a topic, and wait until all replicas are in sync."""
        assignment = ",".join(":".join(map(str, replicas)) for replicas in placed)
        settings = [
            word for name, value in config.items() for word in ("--config", f"{name}={value}")
        ]
        self.tool(
            *(via, "TopicCommand", "--create", "--topic", topic),
            *("--replica-assignment", assignment, *settings),
        )
        for partition, replicas in enumerate(placed):
            self.await_state(TopicPartition(topic, partition), replicas[0], {*replicas})

    def state(self, partition: TopicPartition) -> State:
        """Return what ZooKeeper has of a partition."""
        topic, number = partition
        path = f"{self.cluster.chroot}/brokers/topics/{topic}"
        try:
            state = json.loads(self.cluster.znodes.get(f"{path}/partitions/{number}/state")[0])
        except NoNodeError as error:
            raise LookupError(path) from error
        topic_znode = json.loads(self.cluster.znodes.get(path)[0])
        replicas = topic_znode["partitions"][str(number)]
        if any(topic_znode.get(f"{kind}_replicas") for kind in ("adding", "removing")):
            replicas = [*replicas, -1]
        return State(state["leader"], {*state["isr"]}, replicas)

    def await_state(
        self,
        partition: TopicPartition,
        leader: BrokerId | None,
        isr: set[BrokerId],
        replicas: Sequence[BrokerId] | None = None,
    ) -> None:
        """Wait for a state of a partition that does not move."""
        wanted = f"{partition}: leader {leader}, isr {isr}, replicas {replicas}; but"

        def is_so() -> bool:
            found = self.state(partition)
            is_placed = (
                -1 not in found.replicas and [*(replicas or found.replicas)] == found.replicas
            )
            is_led = leader in (None, found.leader)
            if is_led and found.isr == isr and is_placed:
                return True
            raise LookupError(str(found))

        eventually(is_so, wanted, WAIT_S)

    def produce(self, partition: TopicPartition, values: Sequence[bytes], *via: BrokerId) -> None:
        """Produce records, all of which must be acknowledged by the replicas in sync.

        One request at a time: a broker that begins to lead between two of them refuses the first
        and accepts the second, as it does not know the producer. librdkafka then takes both for
        written. So it is with Kafka alone, too.
        """
        errors: list[object] = []
        settings = {"batch.num.messages": BATCH, "linger.ms": 1_000}
        in_order = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
        producer = Producer({**self.cluster.clients_of("", *via), **settings, **in_order})
        for value in values:
            producer.produce(
                *(partition.topic, value),
                partition=partition.partition,
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(WAIT_S) == 0
        assert errors == [None] * len(values)

    def await_values(
        self, partition: TopicPartition, values: Sequence[bytes], *brokers: BrokerId
    ) -> None:
        """Wait until the logs of brokers have these records and the same bytes."""
        name = str(partition)

        def are_equal() -> bool:
            logs = [self.cluster.log_of(broker, name) for broker in brokers]
            found = [values_of(log) for log in logs]
            if len({*logs}) == 1 and found[0] == [*values]:
                return True
            sizes = [(broker, len(log)) for broker, log in zip(brokers, logs, strict=True)]
            ends = [[str(value)[:9] for value in log[-3:]] for log in found]
            counts = [len(log) for log in found]
            raise LookupError(
                f"bytes {sizes}, {len(values)} values expected, found {counts}: {ends};"
                f" {self.state(partition)}"
            )

        eventually(are_equal, f"equal logs of {name}", WAIT_S)

    def await_no_log(self, partition: TopicPartition, *brokers: BrokerId) -> None:
        """Wait until brokers have no log of a partition."""

        def folders() -> list[Path]:
            name = str(partition)
            return [path for b in brokers for path in self.cluster.folders_of(b, name)]

        eventually(lambda: not folders(), f"no log of {partition} on {brokers}", WAIT_S)

    def await_deletion(self, topic: str, partitions: int) -> None:
        """Wait until nothing is left of a topic."""
        root = self.cluster.chroot
        for path in (f"{root}/brokers/topics/{topic}", f"{root}/admin/delete_topics/{topic}"):
            what = f"{path} is deleted"
            eventually(lambda path=path: not self.cluster.znodes.exists(path), what, WAIT_S)  # type: ignore[misc]
        for number in range(partitions):
            self.await_no_log(TopicPartition(topic, number), *BROKERS)

    def reassignment(self, folder: Path, topic: str, *placed: Sequence[BrokerId]) -> str:
        """Return the path of a file for the tool: where the partitions 0, 1 … shall be."""
        return self._plan(
            folder,
            [
                {"topic": topic, "partition": number, "replicas": list(replicas)}
                for number, replicas in enumerate(placed)
            ],
        )

    def move_to_directory(self, folder: Path, partition: TopicPartition, broker: BrokerId) -> str:
        """Return the path of a file for the tool that moves a replica to the other directory."""
        (now,) = self.cluster.folders_of(broker, str(partition))
        (name,) = {*LOG_DIRS} - {now.parent.name}
        replicas = self.state(partition).replicas
        dirs = [str(now.parent.with_name(name)) if r == broker else "any" for r in replicas]
        topic, number = partition
        row = {"topic": topic, "partition": number, "replicas": replicas, "log_dirs": dirs}
        return self._plan(folder, [row])

    @staticmethod
    def _plan(folder: Path, rows: list[dict[str, object]]) -> str:
        path = folder / "plan.json"
        path.write_text(json.dumps({"version": 1, "partitions": rows}))
        return str(path)

    def reassign(self, via: BrokerId, plan: str, *options: str) -> None:
        """Carry a plan out, and wait until the tool says that it is done."""
        of_plan = ("ReassignPartitionsCommand", "--reassignment-json-file", plan)
        self.tool(via, *of_plan, "--execute", *options)

        def is_done() -> bool:
            lines = self.tool(via, *of_plan, "--verify").splitlines()
            rows = [line for line in lines if line.startswith("Reassignment of ")]
            return bool(rows) and all(" complete" in row for row in rows)

        eventually(is_done, f"{plan} is done", WAIT_S)

    def begin_slow_move(
        self, via: BrokerId, folder: Path, topic: str, *placed: Sequence[BrokerId]
    ) -> str:
        """Begin a move that its throttle keeps from ending; return the path of its plan.

        A broker of Kafka may begin to fetch before it knows the throttle: then once more.
        """
        before = [self.state(TopicPartition(topic, n)).replicas for n in range(len(placed))]
        for _ in range(ATTEMPTS):
            plan = self.reassignment(folder, topic, *placed)
            of_plan = ("ReassignPartitionsCommand", "--reassignment-json-file", plan)
            self.tool(via, *of_plan, "--execute", "--throttle", "1000")
            if "in progress" in self.tool(via, *of_plan, "--verify"):
                return plan
            self.reassign(via, self.reassignment(folder, topic, *before))
        raise AssertionError(f"{ATTEMPTS} moves of {topic} ended in spite of their throttle")

    def delete_records(
        self, via: BrokerId, folder: Path, before: Mapping[TopicPartition, int]
    ) -> None:
        """Delete the records before these offsets."""
        plan = self._plan(folder, [{**p._asdict(), "offset": end} for p, end in before.items()])
        self.tool(via, "DeleteRecordsCommand", "--offset-json-file", plan)

    def read(self, partition: TopicPartition, count: int) -> tuple[int | None, list[bytes | None]]:
        """Return the first offset that a consumer sees, and so many values."""
        consumer = Consumer({**self.cluster.clients, "group.id": "readers"})
        consumer.assign([Position(*partition, OFFSET_BEGINNING)])
        found: list[Message] = []
        while len(found) < count:
            found += (messages := consumer.consume(count - len(found), WAIT_S))
            assert messages
        consumer.close()
        assert [message.error() for message in found] == [None] * count
        return found[0].offset(), [message.value() for message in found]

    def elect_preferred(
        self, via: BrokerId, folder: Path, partitions: Sequence[TopicPartition]
    ) -> None:
        """Elect the first replica of each partition."""
        plan = self._plan(folder, [partition._asdict() for partition in partitions])
        options = ("--election-type", "preferred", "--path-to-json-file", plan)
        self.tool(via, "LeaderElectionCommand", *options)

    def directories(self, via: BrokerId, broker: BrokerId, topic: str) -> dict[str, list[str]]:
        """Return the logs of a topic in each directory of a broker; an error in its place."""
        options = ("--describe", "--broker-list", str(broker), "--topic-list", topic)
        lines = self.tool(via, "LogDirsCommand", *options).splitlines()
        (text,) = (line for line in lines if line.startswith("{"))
        (of_broker,) = json.loads(text)["brokers"]
        return {
            Path(row["logDir"]).name: (
                [re.sub(r".*\.", "", row["error"].split(":")[0])]
                if row["error"]
                else sorted(p["partition"] for p in row["partitions"])
            )
            for row in of_broker["logDirs"]
        }
