"""What admin clients are answered by a broker of ours, and of Kafka, that is not the controller."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import NewTopic

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.errors import Errors
from regent.core.model import BrokerId
from tests.kafka_brokers.genuine_broker import JARS, command_of_tool
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster
from tests.support.fuzzed_requests import ask, ask_versions, build, request

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import kafka.protocol.admin as of_admin

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]

TOPIC, GROUP = "orders", "readers"
TOOLS = (
    "TopicCommand --create --topic {topic} --replica-assignment 1:2,2:3",
    "TopicCommand --alter --topic {topic} --partitions 3 --replica-assignment 1:2,2:3,3:1",
    "TopicCommand --describe --topic {topic}",
    "ConfigCommand --alter --entity-type topics --entity-name {topic} --add-config retention.ms=9",
    "ConfigCommand --describe --entity-type topics --entity-name {topic}",
    "ConfigCommand --alter --entity-type users --entity-name bob"
    " --add-config SCRAM-SHA-256=[password=secret]",
    "ReassignPartitionsCommand --execute --reassignment-json-file {folder}/{topic}",
    "LeaderElectionCommand --election-type preferred --topic {topic} --partition 1",
    "ConsumerGroupCommand --list",
    "TopicCommand --delete --topic {topic}",
)
DIFFERENT = {"elect leaders", "move a partition", "change features", "add a user"}
"""docs/operations.md says how; for the first two only the place of NOT_CONTROLLER is another."""
Asked = tuple[str, str, Mapping[str, Any]]
_CONFIG = {"name": "retention.ms", "value": "100000"}
_OF_TOPIC = {"resource_type": 2, "resource_name": TOPIC}
_LIMIT = {"timeout_ms": 1_000}
_ACL = {"host": "*", "operation": 3, "permission_type": 3, "principal": "User:a"}
_PLACE = {"topics": [{"name": TOPIC, "partitions": [0]}]}


def config_of(kind: int, name: str, **row: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **row}


def asked(other: BrokerId) -> list[Asked]:
    """Return what is asked: a name, the class of kafka-python, and its values.

    ``other`` is a broker that is not asked.
    """
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1}
    new |= {"assignments": [], "configs": []}
    moved = {"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [1, 2]}]}
    scram = {"name": "alice", "mechanism": 2, "iterations": 4096}
    scram |= {"salt": b"salt", "salted_password": b"p" * 64}
    quota: dict[str, Any] = {"entity": [{"entity_type": "user", "entity_name": "alice"}]}
    quota["ops"] = [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]
    pattern = {"resource_type": 2, "resource_name": TOPIC, "resource_pattern_type": 3}
    any_acl = {"resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 1}
    any_acl |= {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    broker_config = config_of(4, str(other), configs=[{**_CONFIG, "name": "log.cleaner.threads"}])
    broker_config["configs"][0] |= {"value": "1", "config_operation": 0}
    return [
        ("create a topic", "CreateTopics", {**_LIMIT, "topics": [new]}),
        (
            "create it only to check",
            "CreateTopics",
            {**_LIMIT, "topics": [new], "validate_only": 1},
        ),
        ("delete a topic", "DeleteTopics", {**_LIMIT, "topics": [{"name": "gone"}]}),
        (
            "add partitions",
            "CreatePartitions",
            {**_LIMIT, "topics": [{"name": TOPIC, "count": 9, "assignments": None}]},
        ),
        (
            "elect leaders",
            "ElectLeaders",
            {
                **_LIMIT,
                "election_type": 0,
                "topic_partitions": [{"topic": TOPIC, "partitions": [0]}],
            },
        ),
        ("move a partition", "AlterPartitionReassignments", {**_LIMIT, "topics": [moved]}),
        ("list moves", "ListPartitionReassignments", {**_LIMIT, "topics": None}),
        (
            "change features",
            "UpdateFeatures",
            {
                **_LIMIT,
                "feature_updates": [{"feature": "metadata.version", "max_version_level": 1}],
            },
        ),
        ("add a user", "AlterUserScramCredentials", {"deletions": [], "upsertions": [scram]}),
        ("describe users", "DescribeUserScramCredentials", {"users": None}),
        ("change quotas", "AlterClientQuotas", {"entries": [quota], "validate_only": False}),
        ("describe quotas", "DescribeClientQuotas", {"components": [], "strict": False}),
        (
            "change a topic's settings",
            "IncrementalAlterConfigs",
            {"resources": [{**_OF_TOPIC, "configs": [{**_CONFIG, "config_operation": 0}]}]},
        ),
        (
            "replace a topic's settings",
            "AlterConfigs",
            {"resources": [{**_OF_TOPIC, "configs": [_CONFIG]}]},
        ),
        (
            "change another broker's settings",
            "IncrementalAlterConfigs",
            {"resources": [broker_config]},
        ),
        (
            "change all brokers' settings",
            "IncrementalAlterConfigs",
            {"resources": [{**broker_config, "resource_name": ""}]},
        ),
        (
            "describe a topic's settings",
            "DescribeConfigs",
            {"resources": [{**_OF_TOPIC, "configuration_keys": None}]},
        ),
        (
            "describe another broker's settings",
            "DescribeConfigs",
            {"resources": [config_of(4, str(other), configuration_keys=None)]},
        ),
        (
            "describe the settings of all brokers",
            "DescribeConfigs",
            {"resources": [config_of(4, "", configuration_keys=None)]},
        ),
        ("add an ACL", "CreateAcls", {"creations": [{**pattern, **_ACL}]}),
        ("describe ACLs", "DescribeAcls", any_acl),
        ("delete ACLs", "DeleteAcls", {"filters": [any_acl]}),
        ("describe the cluster", "DescribeCluster", {"endpoint_type": 1}),
        ("list groups", "ListGroups", {"states_filter": [], "types_filter": []}),
        ("describe log directories", "DescribeLogDirs", {"topics": None}),
        (
            "move to no log directory",
            "AlterReplicaLogDirs",
            {"dirs": [{"path": "/none", **_PLACE}]},
        ),
        (
            "delete records of no topic",
            "DeleteRecords",
            {
                **_LIMIT,
                "topics": [{"name": "none", "partitions": [{"partition_index": 0, "offset": 1}]}],
            },
        ),
        ("list transactions", "ListTransactions", {"state_filters": [], "producer_id_filters": []}),
    ]


def codes(answer: Any) -> Iterator[tuple[str, str]]:
    """Yield the error codes in an answer, and where they are."""
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name == "error_code":
                yield name, Errors(value).name
            elif name in ("controller_id", "api_keys"):
                yield name, str(value)
            else:
                yield from ((f"{name}.{where}", code) for where, code in codes(value))
    elif isinstance(answer, list):
        yield from {pair: None for one in answer for pair in codes(one)}


def answers_of(
    cluster: MovedCluster, brokers: Sequence[BrokerId], name: str, values: Mapping[str, Any]
) -> list[Any]:
    """Return the error codes of each broker's answer, in the newest version that all know.

    Nothing if one of them, an older one of Kafka, does not know the request.
    """
    addresses = [("127.0.0.1", cluster.kafkas[broker].port) for broker in brokers]
    kind, answers = (getattr(of_admin, f"{name}{end}") for end in ("Request", "Response"))
    known = [ask_versions(address).get(kind.API_KEY) for address in addresses]
    newest = [versions.max_version for versions in known if versions is not None]
    if len(newest) < len(brokers):
        return []
    version = min(*newest, kind.max_version)
    body = bytes(build(kind, values).encode(version=version))
    data = [ask(address, request(kind.API_KEY, version, body)) for address in addresses]
    head = 1 if kind.flexible_version_q(version) else 0
    return [sorted(codes(answers.decode(d[head:], version=version).to_dict())) for d in data]


class BesideKafka(NamedTuple):
    """A broker of ours and two of Kafka, of which one is the controller."""

    cluster: MovedCluster
    version: str
    controller: BrokerId
    ours: BrokerId
    theirs: BrokerId


@pytest.fixture(scope="module", params=JARS)
def beside_kafka(
    request: pytest.FixtureRequest,
    jars: None,
    zookeeper_server: EmbeddedZooKeeper,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BesideKafka]:
    del jars
    version = request.param
    folder = tmp_path_factory.mktemp("beside-kafka")
    with MovedCluster(
        folder, f"{zookeeper_server.address}/{folder.name}", version=version
    ) as cluster:
        controller = cluster.controller
        assert controller is not None
        ours, theirs = (broker for broker in BROKERS if broker != controller)
        admin = cluster.admin()  # it must live until the answer has come
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(WAIT_S)
        cluster.follow("move", ours)
        assert cluster.controller == controller
        yield BesideKafka(cluster, version, controller, ours, theirs)


@pytest.mark.timeout(400)
def test_brokers_of_both_kinds_answer_the_same_error_codes(beside_kafka: BesideKafka):
    cluster, _, controller, *brokers = beside_kafka
    different = {}
    for name, kind, values in asked(controller):
        answers = answers_of(cluster, brokers, kind, values)
        if any(answer != answers[0] for answer in answers):
            different[name] = answers
    assert different.keys() == DIFFERENT, different


@pytest.mark.timeout(600)
def test_tools_of_kafka_do_the_same_by_brokers_of_both_kinds(
    beside_kafka: BesideKafka, tmp_path: Path
):
    cluster, version, _, *brokers = beside_kafka
    outputs = []
    for broker in brokers:
        topic = f"made-{broker}"
        moves = {"topic": topic, "partition": 0, "replicas": [2, 1]}
        (tmp_path / topic).write_text(json.dumps({"version": 1, "partitions": [moves]}))
        outputs.append(
            {
                command: output_of(
                    cluster, version, broker, command.format(topic=topic, folder=tmp_path)
                )
                for command in TOOLS
            }
        )
    assert outputs[0] == outputs[1]
    assert [command for command, lines in outputs[0].items() if lines[0] != "status 0"] == []


def output_of(cluster: MovedCluster, version: str, broker: BrokerId, command: str) -> list[str]:
    """Run a tool of Kafka; return its status and the lines of its output, sorted."""
    tool, *options = shlex.split(command)
    server = cluster.kafkas[broker].bootstrap_server
    words = command_of_tool(version, tool, "--bootstrap-server", server, *options)
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=WAIT_S)
    text = re.sub(r"TopicId: \S+", "", ended.stdout.replace(f"made-{broker}", "made"))
    return [f"status {ended.returncode}", *sorted(line for line in text.splitlines() if line)]
