"""Kafka's own tools, failing log directories and paused leaders where both kinds have replicas."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer
from confluent_kafka import TopicPartition as Position
from kazoo.exceptions import NoNodeError

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId, TopicPartition
from regent.testing.waits import eventually
from tests.kafka_brokers.genuine_broker import JARS, command_of_tool
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster
from tests.support.histories import check, summary
from tests.support.load import Load
from tests.support.record_batches import records_of, values_of

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]

LOG_DIRS: Final = ("data", "more")
SETTINGS: Final = {
    "auto.leader.rebalance.enable": "false",  # the tool elects
    "replica.high.watermark.checkpoint.interval.ms": 1_000,
}
BATCH: Final = 4
RULERS: Final = ("kafka", "ours")
LARGE: Final = b"x" * 10_000
ENOUGH: Final = 300
"""So many large records are more than a follower gets in one answer."""


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
        """Produce records, all of which must be acknowledged by the replicas in sync."""
        errors: list[object] = []
        settings = {"enable.idempotence": True, "batch.num.messages": BATCH, "linger.ms": 1_000}
        producer = Producer({**self.cluster.clients_of("", *via), **settings})
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
            return len({*logs}) == 1 and values_of(logs[0]) == [*values]

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


SHAPES: Final = {"two-of-ours": (2, 3), "one-of-ours": (3,)}


@pytest.fixture(
    scope="module",
    params=[pytest.param((v, s), id=f"{v}-{s}") for v in JARS for s in SHAPES],
)
def mixed(
    request: pytest.FixtureRequest,
    jars: None,
    zookeeper_server: EmbeddedZooKeeper,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MixedCluster]:
    del jars
    version, shape = request.param
    folder = tmp_path_factory.mktemp("mixed")
    zookeeper = f"{zookeeper_server.address}/{folder.name}"
    with MovedCluster(
        folder, zookeeper, version=version, settings=SETTINGS, log_dirs=LOG_DIRS
    ) as cluster:
        for broker in SHAPES[shape]:
            cluster.follow("move", broker)
        yield MixedCluster(cluster, version, 1, 3, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_tools_of_kafka_move_replicas_between_brokers_and_directories_of_both_kinds(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    _, _, kafka, ours, other = mixed
    mixed.let_rule(ruler)
    topic = f"moved-under-{ruler}"
    first, second = (TopicPartition(topic, number) for number in range(2))
    large = [LARGE] * ENOUGH
    mixed.create(ours, topic, (kafka, ours), (ours, kafka))
    for partition in (first, second):
        mixed.produce(partition, large)

    _cancel_a_slow_move(mixed, tmp_path, first)
    mixed.await_state(first, kafka, {kafka, ours}, [kafka, ours])
    if other in mixed.cluster.ours or (ruler, mixed.version) != ("kafka", "2.8.2"):
        mixed.await_no_log(first, other)  # Kafka 2.8 ignores its own StopReplica of this epoch

    plan = mixed.reassignment(tmp_path, topic, (ours, other), (kafka, other))
    mixed.reassign(kafka, plan, "--throttle", "50000000")
    mixed.await_state(first, ours, {ours, other}, [ours, other])
    mixed.await_state(second, kafka, {kafka, other}, [kafka, other])
    mixed.await_no_log(first, kafka)
    mixed.await_no_log(second, ours)
    assert "throttled" not in mixed.tool(ours, "TopicCommand", "--describe", "--topic", topic)

    plan = mixed.reassignment(tmp_path, topic, (other, ours), (other, kafka))
    mixed.reassign(ours, plan)
    mixed.await_state(first, ours, {ours, other}, [other, ours])
    mixed.elect_preferred(kafka, tmp_path, (first, second))
    for partition, follower in ((first, ours), (second, kafka)):
        mixed.await_state(partition, other, {other, follower})

    for partition, broker in ((first, ours), (second, kafka)):
        plan = mixed.move_to_directory(tmp_path, partition, broker)
        (former,) = mixed.cluster.folders_of(broker, str(partition))
        mixed.reassign(other, plan)
        (name,) = {*LOG_DIRS} - {former.parent.name}
        expected = {former.parent.name: [], name: [str(partition)]}
        assert mixed.directories(kafka, broker, topic) == expected
        mixed.produce(partition, [b"later"])
        mixed.await_values(partition, [*large, b"later"], broker, other)

    mixed.tool(ours, "TopicCommand", "--delete", "--topic", topic)
    mixed.await_deletion(topic, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_a_move_goes_on_under_a_controller_of_the_other_kind(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    _, _, kafka, ours, other = mixed
    mixed.let_rule(ruler)
    topic = f"handed-over-by-{ruler}"
    mixed.create(other, topic, (kafka, ours), (ours, kafka))
    partitions = [TopicPartition(topic, number) for number in range(2)]
    for partition in partitions:
        mixed.produce(partition, [LARGE] * ENOUGH)
    plan = mixed.reassignment(tmp_path, topic, (other, ours), (other, kafka))
    of_plan = ("ReassignPartitionsCommand", "--reassignment-json-file", plan)
    mixed.tool(kafka, *of_plan, "--execute", "--throttle", "1000")

    mixed.let_rule(*(kind for kind in RULERS if kind != ruler))
    assert "in progress" in mixed.tool(kafka, *of_plan, "--verify")
    mixed.reassign(ours, plan, "--additional", "--throttle", "50000000")
    for partition, stays in zip(partitions, (ours, kafka), strict=True):
        mixed.await_state(partition, None, {other, stays}, [other, stays])
        mixed.produce(partition, [b"later"])
        mixed.await_values(partition, [LARGE] * ENOUGH + [b"later"], other, stays)
    mixed.await_no_log(partitions[0], kafka)
    mixed.await_no_log(partitions[1], ours)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_new_replicas_begin_where_the_log_was_deleted_up_to(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    """In the middle of a batch: the replicas have the whole one, clients see only its end."""
    _, _, kafka, ours, other = mixed
    mixed.let_rule(ruler)
    topic = f"shortened-under-{ruler}"
    mixed.create(other, topic, (kafka,), (ours,))
    partitions = [TopicPartition(topic, number) for number in range(2)]
    values = [b"%d" % number * 1_000 for number in range(1_000)]
    for partition in partitions:
        mixed.produce(partition, values)
    mixed.delete_records(other, tmp_path, dict.fromkeys(partitions, 302))

    placed = [(ours, other, kafka), (kafka, other, ours)]
    mixed.reassign(kafka, mixed.reassignment(tmp_path, topic, *placed))
    for partition, replicas in zip(partitions, placed, strict=True):
        mixed.await_state(partition, None, {*replicas}, replicas)
        mixed.await_values(partition, values[300:], *replicas[:2])
    mixed.elect_preferred(other, tmp_path, partitions)
    for partition, (leader, *_) in zip(partitions, placed, strict=True):
        mixed.await_state(partition, leader, {*BROKERS})
        assert mixed.read(partition, len(values) - 302) == (302, values[302:])


def _cancel_a_slow_move(mixed: MixedCluster, folder: Path, partition: TopicPartition) -> None:
    """Move a partition to the third broker so slowly that it does not end; then cancel it."""
    _, _, kafka, ours, other = mixed
    tool = "ReassignPartitionsCommand"
    plan = ("--reassignment-json-file", mixed.reassignment(folder, partition.topic, (other, kafka)))
    mixed.tool(ours, tool, *plan, "--execute", "--throttle", "1000")
    listed = mixed.tool(kafka, tool, "--list")
    assert re.search(rf"{partition}: .*adding: {other}\.", listed), listed
    assert "in progress" in mixed.tool(ours, tool, *plan, "--verify")
    mixed.tool(kafka, tool, *plan, "--cancel")
    assert "No partition reassignments found" in mixed.tool(ours, tool, "--list")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_unclean_elections_and_deletions_with_brokers_that_were_away(
    ruler: str, mixed: MixedCluster
):
    """The last member of an ISR dies, a broker that is behind returns, of each kind."""
    mixed_kinds = ((mixed.ours, mixed.kafka), (mixed.kafka, mixed.ours))
    for leader, behind in mixed_kinds:
        if leader != mixed.ruler(ruler):  # it dies
            _elect_uncleanly(mixed, ruler, leader, behind)


def _elect_uncleanly(mixed: MixedCluster, kind: str, leader: BrokerId, behind: BrokerId) -> None:
    cluster, of_ours, other = mixed.cluster, mixed.cluster.ours, mixed.other
    ruler = mixed.let_rule(kind)
    topics = by_tool, by_itself, doomed = [
        f"{name}-{behind}-under-{kind}" for name in ("by-tool", "by-itself", "doomed")
    ]
    asked, automatic = (TopicPartition(topic, 0) for topic in topics[:2])
    mixed.create(other, by_tool, (leader, behind))
    mixed.create(other, by_itself, (leader, behind), **{"unclean.leader.election.enable": "true"})
    mixed.create(other, doomed, (leader, behind), (behind, other))
    for partition in (asked, automatic):
        mixed.produce(partition, [b"kept"])

    cluster.kill(behind)
    for partition in (asked, automatic):
        mixed.await_state(partition, leader, {leader})
        mixed.produce(partition, [b"lost"], leader, other)
    mixed.tool(other, "TopicCommand", "--delete", "--topic", doomed)
    cluster.end(leader)
    mixed.await_state(asked, -1, {leader})

    cluster.start(behind, is_ours=behind in of_ours)
    cluster.let_rule(ruler, behind, other)
    mixed.await_state(automatic, behind, {behind})
    mixed.await_state(asked, -1, {leader})
    options = ("--election-type", "unclean", "--topic", by_tool, "--partition", "0")
    mixed.tool(other, "LeaderElectionCommand", *options)
    mixed.await_state(asked, behind, {behind})
    for partition in (asked, automatic):
        mixed.produce(partition, [b"new"], behind, other)

    cluster.restart(leader, is_ours=leader in of_ours)
    for partition in (asked, automatic):
        mixed.await_state(partition, behind, {leader, behind})
        mixed.await_values(partition, [b"kept", b"new"], leader, behind)
    mixed.await_deletion(doomed, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_partitions_of_a_failed_log_directory_go_on_elsewhere(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    for broker, follower in ((mixed.kafka, mixed.ours), (mixed.ours, mixed.kafka)):
        _fail_a_directory(mixed, ruler, broker, follower, tmp_path)


def _fail_a_directory(
    mixed: MixedCluster, kind: str, broker: BrokerId, follower: BrokerId, scratch: Path
) -> None:
    cluster, other, is_ours = mixed.cluster, mixed.other, broker in mixed.cluster.ours
    mixed.let_rule(kind)
    topic = f"directories-{broker}-under-{kind}"
    partitions = [TopicPartition(topic, number) for number in range(6)]
    placed = [(broker, follower)] * 3 + [(follower, broker)] * 3
    mixed.create(other, topic, *placed, **{"segment.bytes": "8192"})
    places = mixed.directories(other, broker, topic)
    failing = LOG_DIRS[1]
    assert all(places.values()), places
    folder = cluster.kafkas[broker].directory / failing
    folder.rename(away := folder.with_name("away"))
    folder.touch()
    values = [b"%d" % number * 1_000 for number in range(10)]  # more than a segment
    for partition, replicas in zip(partitions, placed, strict=True):
        mixed.produce(partition, values)
        if str(partition) in places[failing]:
            mixed.await_state(partition, follower, {follower})
        else:
            mixed.await_state(partition, replicas[0], {*replicas})
    assert mixed.directories(other, broker, topic) == {
        **places,
        failing: ["KafkaStorageException"],
    }
    failed = min(number for number, p in enumerate(partitions) if str(p) in places[failing])
    placed[failed] = (follower, other)
    mixed.reassign(follower, mixed.reassignment(scratch, topic, *placed))
    mixed.await_state(partitions[failed], follower, {follower, other}, [follower, other])

    cluster.shut_down(broker)
    folder.unlink()
    away.rename(folder)
    cluster.restart(broker, is_ours=is_ours)
    for partition, replicas in zip(partitions, placed, strict=True):
        mixed.await_state(partition, None, {*replicas}, list(replicas))
        mixed.produce(partition, [b"later"])
        mixed.await_values(partition, [*values, b"later"], *replicas)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_nothing_acknowledged_is_lost_when_leaders_pause_for_longer_than_their_session(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    cluster = mixed.cluster
    topic = f"paused-under-{ruler}"
    partitions = [TopicPartition(topic, number) for number in range(len(BROKERS))]
    mixed.let_rule(ruler)
    placed = [(*BROKERS[n:], *BROKERS[:n]) for n in range(len(BROKERS))]
    mixed.create(mixed.ours, topic, *placed, **{"min.insync.replicas": "2"})
    servers = str(cluster.clients["bootstrap.servers"])
    with Load(servers, partitions, records_per_s=200) as load:
        load.await_progress(100)
        for broker in BROKERS:
            mixed.let_rule(ruler)
            others = {*BROKERS} - {broker}
            cluster.signal(broker, signal.SIGSTOP)
            try:
                for partition in partitions:
                    mixed.await_state(partition, None, others)
                load.await_progress(100)
            finally:
                cluster.signal(broker, signal.SIGCONT)
            for partition in partitions:
                mixed.await_state(partition, None, {*BROKERS})
            load.await_progress(100)
            mixed.elect_preferred(broker, tmp_path, partitions)
        load.stop_producers()
        logs = {
            partition: {b: records_of(cluster.log_of(b, str(partition))) for b in BROKERS}
            for partition in partitions
        }
        load.finish_consumers({p: len(next(iter(logs[p].values()))) for p in partitions})
        assert summary(check(load.history, logs)) == ""
