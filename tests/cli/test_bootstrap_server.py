"""``status``, ``doctor``, ``topics``, the console: they know a broker; ZooKeeper is far away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from regent.broker.api.authorization import with_authorization
from regent.broker.api.configs import ConfigView, config_apis
from regent.broker.api.describe_cluster import describe_cluster_apis
from regent.broker.broker_settings import StartedBroker, described_settings
from regent.client.answered_tree import NOT_TOLD, read_from_brokers
from regent.client.cluster_connection import Cluster, ClusterLocation, open_session
from regent.config.settings import Settings
from regent.console.browser_gate import BrowserGate
from regent.console.web_server import Console
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import EndPoint, ReplicaAssignment, TopicPartition
from regent.core.protocol.broker import (
    DescribeEventsRequest,
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from regent.core.protocol.control import UpdateMetadataBroker
from regent.core.protocol.controller import (
    BrokerSoftware,
    DepartedBroker,
    DescribeControllerRequest,
    DescribeControllerResponse,
)
from regent.core.protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.security.acls import (
    ANY_HOST,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.authorizer import (
    ALLOW_ALL,
    AclAuthorizer,
    Authorizer,
    AuthorizerSettings,
)
from regent.storage.journal_reader import read_part
from regent.testing.waits import eventually
from regent.transport.control.codec import Request, Response
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import ServedEndpoint
from tests.support.world import live_broker

TOPIC, EPOCH = "t", 7
MOVED = TopicPartition(TOPIC, 1)
LEFT_MS = 1_000_000_000_000


class FarCluster:
    """Broker 0, the controller, which answers; 1 does not; 2 has left. ZooKeeper is unreachable."""

    def __init__(self, cluster: FakeCluster, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.run = cluster.run
        self.json = cluster.json
        self.rules = True
        self.authorizer: Authorizer = ALLOW_ALL
        self.asked: list[Request] = []
        self.control_peer = self._endpoint = cluster.serve(self._answer)
        self._folder = folder
        self._cluster = cluster
        self._executor = executor
        cluster.is_reachable = False

    def listen(self) -> str:
        """Open the Kafka port of broker 0; return its address."""
        cache = MetadataCache()
        started = StartedBroker("far:2181", (), (), (), self.control_peer)
        configs = {f"topics/{TOPIC}": {"min.insync.replicas": "2", "retention.ms": "1"}}

        def read_configs(_: object) -> Mapping[str, Mapping[str, str]]:
            if not self.rules:
                raise SessionExpiredError("there is no ZooKeeper session now")
            return configs

        view = ConfigView(0, cache, described_settings(Settings(), 0, started), read_configs)
        apis = (
            *describe_cluster_apis(cache, lambda: "a-cluster"),
            *config_apis(view, self._executor),
        )
        self.port = self._cluster.listen(more=with_authorization(apis, self.authorizer))
        topics, brokers = {TOPIC: "A" * 22}, {0: self._broker(0)}
        cache.snapshot = MetadataSnapshot(0, EPOCH, brokers, {}, topics, is_complete=True)
        return f"127.0.0.1:{self.port}"

    def listen_with_old_view(
        self, controller_id: int, controller_epoch: int, *, lists_others: bool
    ) -> str:
        """Open the port of broker 1, which has just started or was cut off; return its address."""

        def answer(request: Request) -> Response | Errors:
            if isinstance(request, DescribeControllerRequest):
                return DescribeControllerResponse(Errors.NOT_CONTROLLER)
            state = (1, "RunningAsBroker", controller_id, controller_epoch)
            return DescribeMetadataResponse(Errors.NONE, *state, brokers=(one,), partitions=())

        endpoint, cache = self._cluster.serve(answer), MetadataCache()
        started = StartedBroker("far:2181", (), (), (), endpoint)
        view = ConfigView(1, cache, described_settings(Settings(), 1, started), lambda _: {})
        describe = describe_cluster_apis(cache, lambda: "a-cluster")
        port = self._cluster.listen(more=(*describe, *config_apis(view, self._executor)))
        one = live_broker(1, 100, port=port, control_endpoint=endpoint)
        others = {0: self._broker(0)} if lists_others else {}
        cache.snapshot = MetadataSnapshot(controller_id, controller_epoch, {1: one, **others})
        return f"127.0.0.1:{port}"

    def _broker(self, broker_id: int) -> UpdateMetadataBroker:
        endpoint = self._endpoint if broker_id == 0 else None
        port = self.port if broker_id == 0 else None
        return live_broker(broker_id, 100 + broker_id, port=port, control_endpoint=endpoint)

    def _answer(self, request: Request) -> Response | Errors:
        self.asked.append(request)
        match request:
            case DescribeMetadataRequest():
                rows = [
                    MetadataPartition(TOPIC, "A" * 22, n, n, 5, EPOCH, isr, (0, 1, 2), (), 9)
                    for n, isr in enumerate([(0, 1), (0, 1)])
                ]
                return DescribeMetadataResponse(
                    *(Errors.NONE, 0, "RunningAsBroker", 0, EPOCH),
                    brokers=(self._broker(0), self._broker(1)),
                    partitions=() if request.topics == () else tuple(rows),
                    now_ms=time.time_ns() // 1_000_000,
                )
            case DescribeControllerRequest() if not self.rules:
                return DescribeControllerResponse(Errors.NOT_CONTROLLER)
            case DescribeControllerRequest():
                return DescribeControllerResponse(
                    Errors.NONE,
                    EPOCH,
                    topics_to_be_deleted=("old",),
                    topics_ineligible_for_deletion=("old",),
                    reassigning_partitions=1,
                    software=(BrokerSoftware(0, "regent 9.1"), BrokerSoftware(1, "kafka 3.9")),
                    departed=(DepartedBroker(2, LEFT_MS),),
                )
            case ListPartitionReassignmentsRequest():
                moving = ReplicaAssignment((0, 1, 2), (2,), ())
                return ListPartitionReassignmentsResponse.of({MOVED: moving})
            case DescribeEventsRequest():
                return read_part(self._folder, 0, request)
            case _:
                return Errors.INVALID_REQUEST


@pytest.fixture
def far(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FarCluster]:
    monkeypatch.delenv("REGENT_ZOOKEEPER")
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(1) as executor:
        yield FarCluster(cluster, tmp_path, executor)


def test_status_is_read_from_what_brokers_answer(far: FarCluster) -> None:
    status = far.json("status", "--bootstrap-server", far.listen(), exit_code=1)
    assert status["zookeeper"] is None
    assert status["controller"]["broker_id"] == 0
    assert status["controller"]["controller_epoch"] == EPOCH
    assert [(b["id"], b["broker_epoch"], b["software"]) for b in status["brokers"]] == [
        (0, 100, "regent 9.1"),
        (1, 101, "kafka 3.9"),
    ]
    assert (status["topics"], status["partitions"], status["leaderless_partitions"]) == (2, 2, 0)
    (deleted,) = status["topics_waiting_for_deletion"]
    assert deleted["topic"] == "old"
    assert deleted["reason"].startswith("a replica could not be deleted: its broker is down, or")
    assert status["partitions_being_reassigned"] == 1
    assert status["under_replicated_partitions"] == 1, "a replica that is added is not missed"
    assert status["not_told"] == [NOT_TOLD]
    assert not [text for text in status["warnings"] if "the settings of" in text]


def test_who_is_missing_is_known_and_why_only_to_zookeeper(far: FarCluster) -> None:
    result = far.run("status", "--bootstrap-server", far.listen())
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    (missing,) = (line for line in lines if "broker 2 not registered" in line)
    assert "since 2001-09-09T01:46:40Z" in missing
    assert missing.endswith("only ZooKeeper has the reason, if it said one: ask with --zookeeper")
    assert f"not known: {NOT_TOLD}" in lines
    assert lines[0].split() == ["zookeeper", "not", "asked"]


def test_brokers_without_zookeeper_tell_what_they_know(far: FarCluster) -> None:
    """The controller is none any more, which the others do not know; nobody else is elected."""
    far.rules = False
    where = ("--bootstrap-server", far.listen())
    status = far.json("status", *where, exit_code=1)
    assert status["controller"] is None
    assert "there is no controller" in status["reasons"]
    assert status["partitions"] == 2
    assert status["not_told"] == [
        NOT_TOLD,
        f"the settings of 1 topic ({TOPIC}): a broker does not tell them: there is no ZooKeeper"
        " session now",
    ]
    assert not [text for text in status["warnings"] if "the settings of" in text]
    doctor = far.run("doctor", *where, "--watch-groups", "0").stdout
    assert "min.insync.replicas=1" not in doctor, "no broker told this setting"


def test_settings_that_the_user_may_not_see_are_named_once_with_the_right(far: FarCluster) -> None:
    allowed = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
    entry = AccessControlEntry(
        "User:*", ANY_HOST, AclOperation.DESCRIBE_CONFIGS, AclPermissionType.ALLOW
    )
    cluster = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL)
    allowed.replace({cluster: frozenset({entry})})
    far.authorizer = allowed
    where = ("--bootstrap-server", far.listen())
    needed = "the user needs the right to DescribeConfigs of them"
    lines = far.run("status", *where).stdout.splitlines()
    told = [line for line in lines if "the settings of" in line]
    assert told == [f"not known: the settings of 2 topics (old, {TOPIC}): {needed}"]
    doctor = far.run("doctor", *where, "--watch-groups", "0", "-o", "json")
    (found,) = (f for f in json.loads(doctor.stdout) if "the settings of 2" in f["message"])
    assert (found["severity"], found["message"]) == ("ok", told[0])


def test_topics_and_brokers_are_listed_and_described(far: FarCluster) -> None:
    where = ("--bootstrap-server", far.listen())
    assert far.run("topics", "list", "--names", *where).stdout.splitlines() == [
        "old - marked for deletion",
        TOPIC,
    ]
    (topic,) = (row for row in far.json("topics", "list", *where) if row["topic"] == TOPIC)
    assert (topic["partitions"], topic["replicas"]) == (2, [3])
    lines = far.run("topics", "describe", TOPIC, *where).stdout.splitlines()
    assert lines[0].endswith("Configs: min.insync.replicas=2,retention.ms=1"), "all settings"
    assert [line.split()[5] for line in lines[1:]] == ["0", "1"], "the leaders"
    brokers = far.json("brokers", "list", *where)
    assert [(b["id"], b["is_controller"], b["software"]) for b in brokers] == [
        (0, True, "regent 9.1"),
        (1, False, "kafka 3.9"),
    ]


def test_top_watches_what_brokers_answer(far: FarCluster) -> None:
    screen = far.json("top", "--once", "--bootstrap-server", far.listen())
    assert (screen["controller"], screen["controller_epoch"]) == (0, EPOCH)
    assert [row["id"] for row in screen["brokers"]] == [0, 1]


@pytest.mark.parametrize(
    ("old_view", "lists_others"),
    [((-1, 0), False), ((-1, 0), True), ((1, EPOCH - 1), True), ((1, EPOCH - 1), False)],
)
def test_a_broker_that_knows_no_controller_or_a_former_one_is_not_believed(
    far: FarCluster, old_view: tuple[int, int], *, lists_others: bool
) -> None:
    current = far.listen()
    old = far.listen_with_old_view(*old_view, lists_others=lists_others)
    addresses = old if lists_others else f"{old},{current}"
    status = far.json("status", "--bootstrap-server", addresses, exit_code=1)
    assert status["controller"]["controller_epoch"] == EPOCH
    assert status["partitions"] == 2
    assert status["not_told"] == [NOT_TOLD], "settings are asked for where the controller is known"


def test_where_no_broker_knows_a_controller_there_is_none(far: FarCluster) -> None:
    far.listen()
    old = far.listen_with_old_view(-1, EPOCH, lists_others=False)
    status = far.json("status", "--bootstrap-server", f"{old},127.0.0.1:1", exit_code=1)
    assert "there is no controller" in status["reasons"]


def test_the_doctor_examines_what_brokers_answer_and_names_the_rest(far: FarCluster) -> None:
    result = far.run(
        "doctor", "--bootstrap-server", far.listen(), "--watch-groups", "0", "-o", "json"
    )
    findings = json.loads(result.stdout)
    sentences = [f["message"] for f in findings]
    assert f"not examined: {NOT_TOLD}" in sentences
    assert any("broker 2 not registered" in text for text in sentences)
    told = "min.insync.replicas=1 and three replicas"
    assert not any(told in text for text in sentences), "the topic's own setting is read"
    assert not any("cannot be done" in text for text in sentences)


def test_a_profile_with_brokers_is_enough_for_events(far: FarCluster, tmp_path: Path) -> None:
    line = {"ts_ms": 5, "broker_id": 0, "event": "TopicChange", "controller_epoch": EPOCH}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    assert far.run("profile", "add", "p", "--bootstrap-server", far.listen()).exit_code == 0
    result = far.run("events", "--profile", "p", "-o", "json")
    assert json.loads(result.stdout) == line
    assert "the journal of broker 1 cannot be read: it is a broker of Kafka" in result.stderr
    asked = {type(request) for request in far.asked}
    assert ListPartitionReassignmentsRequest not in asked, "the journal would note the question"


def console_of(far: FarCluster) -> Console:
    """Start a console as ``--bootstrap-server`` does."""
    host, _, port = far.listen().partition(":")
    known = Cluster(
        lambda: ClusterLocation("", None), open_session, [EndPoint("", host, int(port))]
    )
    console = Console(read_from_brokers(known), BrowserGate("token", 8080))
    console.collector.start()
    return console


def test_the_console_has_the_journals_that_brokers_read_for_it(
    far: FarCluster, tmp_path: Path
) -> None:
    line = {"ts_ms": 5, "broker_id": 0, "event": "TopicChange", "event_id": 1}
    changes = {"changes": ["t: new topic"], "controller_epoch": EPOCH}
    (tmp_path / "events.jsonl").write_text(json.dumps({**line, **changes}) + "\n")
    host, _, port = far.listen().partition(":")
    known = Cluster(
        lambda: ClusterLocation("", None), open_session, [EndPoint("", host, int(port))]
    )
    console = Console(read_from_brokers(known), BrowserGate("token", 8080))
    console.collector.start()
    try:
        client = TestClient(console.application, base_url="http://127.0.0.1:8080")
        client.get("/", params={"token": "token"})
        eventually(lambda: "t: new topic" in client.get("/journal").text, "the journal is shown")
    finally:
        console.stop()


def test_the_console_without_journals_shows_what_clients_see(far: FarCluster) -> None:
    far.control_peer = ""
    console = console_of(far)
    try:
        client = TestClient(console.application, base_url="http://127.0.0.1:8080")
        client.get("/", params={"token": "token"})
        assert client.get("/journal").status_code == 200
        assert "no broker tells" not in client.get("/").text
        doctor = client.get("/doctor").text
        assert "broker 0: it tells no control port" in doctor
    finally:
        console.stop()


@pytest.mark.parametrize("command", ["status", "doctor", "events"])
def test_a_broker_that_tells_no_control_port_is_named(far: FarCluster, command: str) -> None:
    far.control_peer = ""
    result = far.run(command, "--bootstrap-server", far.listen())
    assert result.exit_code != 0
    told = "broker 0: it tells no control port: it is one of Kafka, or of an older release"
    assert told in result.output + result.stderr


def test_who_may_not_ask_for_settings_is_told_which_right_is_needed(far: FarCluster) -> None:
    with ExitStack() as stack:
        denies = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
        broker = ServedEndpoint(stack, MemoryLogs(), Settings(), authorizer=denies)
        problem = failing(far.run("events", "--bootstrap-server", f"127.0.0.1:{broker.port}"))
    assert problem.startswith("no broker tells what it knows: broker 0: it does not tell")
    assert problem.endswith(": the user needs the right to DescribeConfigs of the cluster")


def test_a_broker_that_does_not_answer_is_named_in_one_line(far: FarCluster) -> None:
    where = ("--bootstrap-server", "127.0.0.1:1")
    assert failing(far.run("events", *where)).startswith(
        "no broker of --bootstrap-server answers: 127.0.0.1:1: "
    )
    status = far.run("status", *where)
    (line,) = status.stdout.splitlines()
    assert (status.exit_code, line.startswith("unhealthy: no broker of")) == (1, True)
