"""``migrate check``: each obstacle is one line, with the remedy. ``migrate back``: stray logs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result

from regent.cli.main import cli
from regent.config.private_files import write_private
from regent.core.admin.config_descriptions import ConfigSource
from regent.core.errors import Errors
from regent.core.model import BrokerInfo, EndPoint, LeaderAndIsr, ReplicaAssignment
from regent.core.protocol.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from regent.core.protocol.messages.log_dirs import DescribeLogDirsResponse, DescribeLogDirsResult
from regent.storage.log_directory import LogDirectory
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.message_codec import encoded
from regent.zk.znodes import (
    ClusterIdZNode,
    ConfigEntityZNode,
    ControllerZNode,
    DeleteTopicsTopicZNode,
    ReassignPartitionsZNode,
)
from tests.support.certificates import Authority
from tests.support.fake_cluster import FakeCluster
from tests.support.record_batches import batch, old_message

HEX = "0123456789abcdef" * 2
Serve = Callable[..., int]
UNSEEN = (
    "messages of format 0 or 1 are not used, and the logs of these brokers were not examined for"
    " them: {}; run this on their machines, with --kafka-properties, as a user who may read the"
    " logs"
)
SPACE = "no record is copied: the broker uses the log directories as they are, without more space"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return what opens the port of a broker of Kafka 3.9 with settings of its own."""
    with ExitStack() as stack:

        def serve_one(
            settings: dict[str, str],
            error: Errors = Errors.NONE,
            *,
            is_old: bool = False,
            failed_log_dir: str = "",
        ) -> int:
            rows = tuple(
                DescribeConfigsResourceResult(
                    name=name,
                    value=value,
                    read_only=True,
                    config_source=ConfigSource.STATIC_BROKER,
                    is_sensitive=False,
                )
                for name, value in settings.items()
            )
            result = DescribeConfigsResult(
                error_code=error, resource_type=4, resource_name="0", configs=rows
            )

            async def handle(request: KafkaRequest) -> KafkaAnswer:
                answer = DescribeConfigsResponse(results=(result,))
                return (encoded(answer, request.api_version, is_flexible=False),)

            async def describe_log_dirs(request: KafkaRequest) -> KafkaAnswer:
                failed = DescribeLogDirsResult(
                    error_code=Errors.KAFKA_STORAGE_ERROR, log_dir=failed_log_dir, topics=()
                )
                log_dirs = DescribeLogDirsResponse(results=(failed,) if failed_log_dir else ())
                return (encoded(log_dirs, request.api_version, is_flexible=False),)

            async def refuse(_: KafkaRequest) -> KafkaAnswer:
                raise NotImplementedError

            newest = [] if is_old else [KafkaApi(KafkaApiKey.LEADER_AND_ISR, 0, 7, refuse)]
            apis = [
                *newest,
                KafkaApi(KafkaApiKey.DESCRIBE_CONFIGS, 1, 1, handle),
                KafkaApi(KafkaApiKey.DESCRIBE_LOG_DIRS, 1, 1, describe_log_dirs),
            ]
            listener = KafkaListener("127.0.0.1", 0, apis)
            listener.start()
            stack.callback(listener.close, 0.1)
            return listener.port

        yield serve_one


@pytest.fixture
def kafka(cluster: FakeCluster, serve: Serve) -> FakeCluster:
    """Two brokers of Kafka, of which nothing stands in the way of a move."""
    for broker_id in (0, 1):
        settings = {"broker.id": "0", "num.io.threads": "8", "log.retention.ms": "-1"}
        register(cluster, broker_id, serve(settings))
    cluster.elect(1)
    cluster.put(ClusterIdZNode.PATH, ClusterIdZNode.encode("c" * 22))
    in_sync = {0: LeaderAndIsr(0, (0, 1))}
    cluster.put_topic("t", {0: ReplicaAssignment((0, 1))}, leaders=in_sync)
    return cluster


def register(cluster: FakeCluster, broker_id: int, port: int, protocol: str = "PLAINTEXT") -> None:
    endpoint = EndPoint(protocol, "127.0.0.1", port, protocol)
    cluster.register_as(BrokerInfo(broker_id, (endpoint,)))


def obstacles(cluster: FakeCluster, *arguments: str) -> list[str]:
    found = cluster.json("migrate", "check", *arguments, exit_code=1)
    assert not found["ready"]
    lines = [row["message"] for row in found["obstacles"]]
    assert not [line for line in lines if "\n" in line or ": " not in line]
    return lines


def put_config(cluster: FakeCluster, entity: str, **config: str) -> None:
    values = {name.replace("_", "."): value for name, value in config.items()}
    cluster.put(f"/config/{entity}", ConfigEntityZNode.encode(values))


def test_nothing_is_in_the_way(kafka: FakeCluster):
    notes = [SPACE, UNSEEN.format("0, 1")]
    assert kafka.json("migrate", "check") == {"ready": True, "obstacles": [], "notes": notes}
    shown = kafka.run("migrate", "check")
    assert (shown.exit_code, shown.stdout) == (0, "nothing is in the way\n")
    assert shown.stderr.splitlines() == notes


def test_the_settings_that_a_broker_has_are_examined(cluster: FakeCluster, serve: Serve):
    settings = {
        "inter.broker.protocol.version": "2.3-IV1",
        "authorizer.class.name": "my.Authorizer",
        "num.partitions": "2000000",
        "zookeeper.ssl.client.enable": "true",
    }
    register(cluster, 0, serve(settings))
    cluster.elect(0)
    lines = obstacles(cluster)
    assert [line.split("=")[0].split(" must")[0] for line in lines] == [
        f"broker 0: {name}" for name in sorted(settings)
    ]
    shown = cluster.run("migrate", "check")
    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [*lines, "4 obstacles"]


def test_brokers_that_are_too_old_or_do_not_answer(cluster: FakeCluster, serve: Serve):
    register(cluster, 0, serve({}, is_old=True))
    register(cluster, 1, serve({}, Errors.CLUSTER_AUTHORIZATION_FAILED))
    register(cluster, 2, 1)  # nobody listens
    register(cluster, 3, 1, "SSL")
    cluster.elect(0)
    old, closed, gone, encrypted, listeners = obstacles(cluster)
    assert "no name of a listener in common" in listeners
    assert old == (
        "broker 0 is older than Kafka 2.4, which the controller cannot rule: upgrade it first"
    )
    assert closed.startswith("broker 1 does not show its settings (CLUSTER_AUTHORIZATION_FAILED)")
    assert gone.startswith("broker 2 cannot be asked: ")
    assert encrypted.startswith("broker 3 has no listener for PLAINTEXT")


def test_a_cluster_that_moves_to_kraft(kafka: FakeCluster):
    kafka.put("/migration", b"{}")
    kafka.put(ControllerZNode.PATH, b'{"version":2,"brokerid":3000,"kraftControllerEpoch":5}')
    moving, controller = obstacles(kafka)
    assert moving.startswith("/migration is there")
    assert controller.startswith("the controller is one of KRaft (epoch 5)")
    kafka.put(ControllerZNode.PATH, b'{"version":2,"brokerid":1,"kraftControllerEpoch":-1}')
    assert len(obstacles(kafka)) == 1


def test_no_controller_and_no_broker(cluster: FakeCluster):
    none, no_broker = obstacles(cluster)
    assert none.startswith("there is no controller")
    assert no_broker.startswith("no broker is registered")


def test_configs_in_zookeeper_that_cannot_be_used(kafka: FakeCluster):
    put_config(kafka, "topics/t", message_format_version="0.10.2", remote_storage_enable="true")
    put_config(kafka, "brokers/<default>", log_cleaner_backoff_ms="x")
    put_config(kafka, "brokers/1", principal_builder_class="my.Builder")
    passwords = {"ssl.key.password": "encoded", "plain.sasl.jaas.config": "encoded"}
    passwords = {f"listener.name.one.{name}": text for name, text in passwords.items()}
    kafka.put("/config/brokers/0", ConfigEntityZNode.encode(passwords))
    put_config(kafka, "users/u", producer_byte_rate="-5", SCRAM_SHA_256="no")
    kafka.put("/config/users/v", ConfigEntityZNode.encode({"SCRAM-SHA-512": "salt=x"}))
    kafka.put("/kafka-acl/Topic/secret", b"no JSON")
    lines = obstacles(kafka)
    assert [line.split(" cannot")[0].split(" must")[0].split(":")[0] for line in lines] == [
        "the setting log.cleaner.backoff.ms of all brokers in ZooKeeper",
        "the password listener.name.one.plain.sasl.jaas.config of broker 0 in ZooKeeper",
        "the setting principal.builder.class=my.Builder of broker 1 in ZooKeeper",
        "topic t",
        "topic t has message.format.version=0.10.2",
        *["/config/users/u"] * 2,
        "/config/users/v",
        "the ACLs of Topic",
    ]


def test_partitions_and_requests_that_are_under_way(kafka: FakeCluster):
    kafka.put_topic(
        "p",
        {
            0: ReplicaAssignment((0,)),
            1: ReplicaAssignment((0, 1)),
            2: ReplicaAssignment((0, 1), adding_replicas=(1,)),
            3: ReplicaAssignment((0, 1)),
        },
        leaders={
            0: LeaderAndIsr(0, (0,)),
            1: LeaderAndIsr(0, (0,)),
            2: LeaderAndIsr(0, (0,)),
            3: LeaderAndIsr(-1, (7,)),
        },
    )
    kafka.put(DeleteTopicsTopicZNode.path("gone"))
    kafka.put(
        ReassignPartitionsZNode.PATH,
        json.dumps(
            {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}
        ).encode(),
    )
    assert [line.rpartition(": ")[0] for line in obstacles(kafka)] == [
        "1 topic being deleted: gone",
        "1 partition without a leader: p-3",
        "1 partition under-replicated: p-1",
        "1 partition being reassigned: p-2",
        "1 partition with one replica: p-0",
        "1 partition in /admin/reassign_partitions: t-0",
    ]


def test_partitions_that_take_no_records_while_a_broker_is_away(cluster: FakeCluster, serve: Serve):
    """``min.insync.replicas`` is the topic's, or the broker's, of a file or a default."""
    for broker_id in (0, 1):
        register(cluster, broker_id, serve({"min.insync.replicas": "2"}))
    cluster.elect(1)
    cluster.put(ClusterIdZNode.PATH, ClusterIdZNode.encode("c" * 22))
    in_sync = {0: LeaderAndIsr(0, (0, 1))}
    for topic in ("of-broker", "of-topic", "lower"):
        cluster.put_topic(topic, {0: ReplicaAssignment((0, 1))}, leaders=in_sync)
    put_config(cluster, "topics/of-topic", min_insync_replicas="3")
    put_config(cluster, "topics/lower", min_insync_replicas="1")
    assert obstacles(cluster) == [
        "2 partitions with as many replicas as min.insync.replicas: of-broker-0, of-topic-0: lower"
        " min.insync.replicas, or add a replica, else producers with acks=all wait while a broker"
        " is replaced"
    ]


def test_files_of_brokers_are_examined_instead_of_what_the_brokers_say(
    cluster: FakeCluster, serve: Serve, tmp_path: Path
):
    register(cluster, 0, serve({"zookeeper.set.acl": "true"}))
    cluster.elect(0)
    assert [line.split("=")[0] for line in obstacles(cluster)] == ["broker 0: zookeeper.set.acl"]
    text = "broker.id=0\nzookeeper.connect=fake:2181\nlisteners=PLAINTEXT://127.0.0.1:1\n"
    good, bad, open_one = (tmp_path / name for name in ("good", "bad", "open"))
    good.write_text(f"{text}zookeeper.set.acl=true\nregent.secret.file=/secret\n")
    bad.write_text(f"{text}process.roles=broker\nnum.partitions=0\n")
    open_one.write_text(text.replace("127.0.0.1", "192.0.2.1"))
    assert cluster.json("migrate", "check", "--kafka-properties", str(good))["ready"]
    arguments = [
        part for path in (good, bad, open_one) for part in ("--kafka-properties", str(path))
    ]
    roles, partitions, strangers = obstacles(cluster, *arguments)
    assert roles.startswith(f"{bad}: process.roles=broker cannot")
    assert partitions.startswith(f"{bad}: num.partitions must")
    assert "allow-unauthenticated" in strangers
    twice = obstacles(cluster, "--kafka-properties", str(good), "--kafka-properties", str(good))
    assert "broker.id=0 is that of another file" in twice[0]


@pytest.mark.parametrize(
    ("user", "is_refused"), [("broker-1", False), ("broker-2", True), ("kafka", False)]
)
@pytest.mark.parametrize("kind", ["login", "certificate"])
def test_a_broker_with_the_user_of_another_one(
    kafka: FakeCluster, tmp_path: Path, kind: str, user: str, is_refused: bool
):
    file = tmp_path / "server.properties"
    text = "broker.id=1\nzookeeper.connect=fake:2181\n"
    if kind == "login":
        text += "listeners=SASL_PLAINTEXT://127.0.0.1:1\nsasl.enabled.mechanisms=SCRAM-SHA-256\n"
        text += "security.inter.broker.protocol=SASL_PLAINTEXT\n"
        text += "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256\n"
        text += "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=x required"
        text += f" username='{user}' password='p';\n"
    else:
        authority = Authority(tmp_path)
        text += "listeners=SSL://127.0.0.1:1\nsecurity.inter.broker.protocol=SSL\n"
        text += "ssl.client.auth=required\nssl.keystore.type=PEM\nssl.truststore.type=PEM\n"
        text += f"ssl.keystore.location={authority.keystore(user)}\n"
        text += f"ssl.truststore.location={authority.trusted}\n"
        text += "ssl.principal.mapping.rules=RULE:^CN=([^,]*),.*$/$1/\n"
    write_private(file, text)
    if not is_refused:
        assert kafka.json("migrate", "check", "--kafka-properties", str(file))["ready"]
        return
    (line,) = obstacles(kafka, "--kafka-properties", str(file))
    assert line.startswith(f"{file}: broker 1 connects to others as the user broker-2, and")


def test_brokers_without_a_common_name_of_a_listener(kafka: FakeCluster, serve: Serve):
    port = serve({})
    inside = EndPoint("INSIDE", "127.0.0.1", port, "PLAINTEXT")
    kafka.unregister(1)
    kafka.register_as(BrokerInfo(1, (inside,)))
    kafka.elect(1)
    assert obstacles(kafka) == [
        "the brokers have no name of a listener in common (broker 0 has PLAINTEXT, broker 1 has"
        " INSIDE): give all the listener of the same inter.broker.listener.name first"
    ]


def test_a_file_without_the_key_of_the_delegation_tokens(kafka: FakeCluster, tmp_path: Path):
    text = "broker.id=0\nzookeeper.connect=fake:2181\nlisteners=PLAINTEXT://127.0.0.1:1\n"
    without, having = tmp_path / "without", tmp_path / "with"
    without.write_text(text)
    having.write_text(f"{text}broker.id=1\ndelegation.token.secret.key=secret\n")
    having.chmod(0o600)
    files = [part for path in (without, having) for part in ("--kafka-properties", str(path))]
    assert kafka.json("migrate", "check", *files)["ready"]
    kafka.put("/delegation_token/tokens/abc", b"{}")
    (line,) = obstacles(kafka, *files)
    assert line.startswith(
        f"{without} has no delegation.token.secret.key, and the cluster has 1 delegation token:"
    )


LOGIN_ELSEWHERE = """\
listeners=SASL_PLAINTEXT://127.0.0.1:1
security.inter.broker.protocol=SASL_PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-256
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256
"""
"""What a file of Kafka's says whose login at other brokers is in a file of JAAS."""


def test_files_of_brokers_are_examined_with_the_options_that_the_brokers_will_have(
    kafka: FakeCluster, tmp_path: Path
):
    file, password, config = (tmp_path / name for name in ("properties", "password", "toml"))
    text = f"zookeeper.connect=fake:2181\ndelete.topic.enable=x\n{LOGIN_ELSEWHERE}"
    file.write_text(text)
    write_private(password, "secret")
    config.write_text("[broker]\nnum_partitions = 0\n")
    check = ["--kafka-properties", str(file)]
    jaas, delete, broker_id = sorted(obstacles(kafka, *check))[::-1]
    assert "use --sasl-inter-broker-user" in jaas
    assert "delete.topic.enable must" in delete
    assert "or use --id" in broker_id
    check += ["--id", "1", "--delete-topic-enable", "true", "--sasl-inter-broker-user", "broker-1"]
    check += ["--sasl-inter-broker-password-file", str(password)]
    assert kafka.json("migrate", "check", *check)["ready"]
    (toml,) = obstacles(kafka, *check, "--config", str(config))
    assert toml.startswith(f"{config}: broker.num_partitions")
    (other,) = obstacles(kafka, *check, "--sasl-inter-broker-user", "broker-2")
    assert "connects to others as the user broker-2" in other
    (isr,) = obstacles(kafka, *check, "--min-insync-replicas", "2")
    assert isr.startswith("1 partition with as many replicas as min.insync.replicas: t-0")
    both = kafka.run("migrate", "check", *check, "--kafka-properties", str(file))
    assert both.exit_code == 2
    assert "--id is the id of one broker" in both.stderr


@pytest.mark.parametrize("own", ["fake:2181", "FAKE/", "other:1,fake:2181"])
def test_a_file_that_names_the_cluster_that_is_examined(
    kafka: FakeCluster, tmp_path: Path, own: str
):
    found = kafka.json("migrate", "check", "--kafka-properties", file_with(tmp_path, own))
    assert found["ready"]
    assert not [note for note in found["notes"] if "zookeeper.connect" in note]


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (None, "zookeeper.connect is missing: it, or --zookeeper, must name ZooKeeper"),
        ("fake:2181/kafka", "names another cluster than the one that is examined (fake:2181)"),
        ("fake:x", "zookeeper.connect=fake:x is no address: write"),
    ],
)
def test_a_file_that_does_not_name_the_cluster_that_is_examined(
    kafka: FakeCluster, tmp_path: Path, own: str | None, told: str
):
    (line,) = obstacles(kafka, "--kafka-properties", file_with(tmp_path, own))
    assert told in line


def test_other_servers_may_be_of_the_same_ensemble(kafka: FakeCluster, tmp_path: Path):
    file = file_with(tmp_path, "z:2181")
    found = kafka.json("migrate", "check", "--kafka-properties", file)
    assert found["ready"]
    assert f"{file}: zookeeper.connect=z:2181 names no server of fake:2181" in found["notes"][1]


def file_with(folder: Path, zookeeper_connect: str | None) -> str:
    """Write the file of broker 0; return its name."""
    file = folder / "server.properties"
    text = "broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:1\n"
    own = "" if zookeeper_connect is None else f"zookeeper.connect={zookeeper_connect}\n"
    file.write_text(text + own)
    return str(file)


def test_logs_with_messages_of_formats_that_are_not_used(kafka: FakeCluster, tmp_path: Path):
    arguments = []
    for broker_id in (0, 1):
        file, log_dir = tmp_path / f"{broker_id}.properties", tmp_path / f"logs-{broker_id}"
        text = f"broker.id={broker_id}\nzookeeper.connect=fake:2181\nlog.dirs={log_dir}\n"
        file.write_text(f"{text}listeners=PLAINTEXT://127.0.0.1:1\n")
        arguments += ["--kafka-properties", str(file)]
        for name, data in (
            ("old-0", old_message(b"x", magic=broker_id)),
            (f"moving-1.{HEX}-future", old_message(b"x")),
            ("new-0", batch(b"x")),
            ("cut-0", old_message(b"x")[:-1]),
            (f"deleted-0.{HEX}-delete", old_message(b"x")),
        ):
            (log_dir / name).mkdir(parents=True)
            (log_dir / name / f"{0:020}.log").write_bytes(batch(b"x"))
            (log_dir / name / f"{7:020}.log").write_bytes(data)
        (log_dir / "meta.properties").write_text("version=0\nbroker.id=0\n")
    found = kafka.json("migrate", "check", *arguments, exit_code=1)
    assert found["obstacles"] == [
        {
            "check": "logs",
            "message": "broker 0: 2 logs with messages of format 0 or 1, which are not used:"
            " moving-1, old-0: copy the records to new topics",
        }
    ]
    assert found["notes"] == [SPACE, UNSEEN.format("1")], "the logs are those of broker 0"
    (tmp_path / "logs-1" / "meta.properties").unlink()
    assert len(obstacles(kafka, *arguments)) == 2


def test_a_failed_log_directory_of_a_broker_of_kafka(cluster: FakeCluster, serve: Serve):
    register(cluster, 0, serve({}, failed_log_dir="/b"))
    cluster.elect(0)
    assert obstacles(cluster) == [
        "broker 0: log directory /b has failed: replace its disk, and restart it first"
    ]


# --- back ---


def stray_log(directory: Path, topic: str) -> Path:
    path = directory / f"{topic}-0.{HEX}-stray"
    path.mkdir(parents=True)
    (path / "00000000000000000000.log").write_bytes(b"records")
    return path


@pytest.fixture
def log_dirs(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two log directories, on two disks if the machine has a second one."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield tmp_path / "one", Path(folder) / "two"


def back(log_dirs: Sequence[Path], target: Path) -> Result:
    file = log_dirs[0].parent / "server.properties"
    file.write_text(f"broker.id=3\nlog.dirs={','.join(map(str, log_dirs))}\n{LOGIN_ELSEWHERE}")
    return back_with(file, target)


def back_with(file: Path, target: Path, *options: str) -> Result:
    command = ["migrate", "back", "--kafka-properties", str(file), "--move-to", str(target)]
    return CliRunner().invoke(cli, [*command, *options])


def test_stray_logs_leave_the_log_directories(log_dirs: tuple[Path, Path], tmp_path: Path):
    strays = [stray_log(folder, topic) for folder in log_dirs for topic in ("a", "b" * 200)]
    strays[2:] = [path.rename(path.with_name(f"c{path.name}")) for path in strays[2:]]
    others = [folder / name for folder in log_dirs for name in (f"t-0.{HEX}-delete", "t-stray-1")]
    for other in others:
        other.mkdir()
    target = tmp_path / "moved" / "here"
    moved = [target / path.name for path in strays]
    done = back(log_dirs, target)
    assert (done.exit_code, done.stdout.splitlines()) == (0, [*map(str, moved)]), done.output
    assert all((path / "00000000000000000000.log").read_bytes() == b"records" for path in moved)
    assert sorted(target.iterdir()) == sorted(moved)
    left = sorted(path for folder in log_dirs for path in folder.iterdir() if path.is_dir())
    assert left == sorted(others)
    again = back(log_dirs, target)
    assert (again.exit_code, again.stdout) == (0, "")
    assert "nothing to move" in again.stderr


def test_an_interrupted_move_of_stray_logs_is_ended(log_dirs: tuple[Path, Path], tmp_path: Path):
    target = tmp_path / "moved"
    unfinished = stray_log(log_dirs[1], "a")
    whole = stray_log(log_dirs[1], "b")
    (target / f"{unfinished.name}.part" / "half").mkdir(parents=True)
    stray_log(target, "b")
    log_dirs[0].mkdir()
    assert back(log_dirs, target).exit_code == 0
    assert {path.name for path in target.iterdir()} - {f"{unfinished.name}.part"} == {
        unfinished.name,
        whole.name,
    }
    assert not (target / unfinished.name / "half").exists()
    other = stray_log(log_dirs[0], "b")
    (other / "00000000000000000007.log").write_bytes(b"more")
    refused = back(log_dirs, target)
    assert refused.exit_code == 1
    assert "is there already, with other files" in refused.stderr
    assert (other / "00000000000000000007.log").exists()


def test_no_log_is_moved_that_a_broker_may_use(log_dirs: tuple[Path, Path], tmp_path: Path):
    strays = [stray_log(folder, "a") for folder in log_dirs]
    used = LogDirectory(log_dirs[1])
    used.open(3)
    in_use = back(log_dirs, tmp_path / "moved")
    used.close()
    inside = back(log_dirs, log_dirs[1] / "moved")
    absent = back([*log_dirs, tmp_path / "three"], tmp_path / "moved")
    for refused, reason in ((in_use, "in use"), (inside, "is in"), (absent, "is not there")):
        assert refused.exit_code == 1
        assert reason in refused.stderr
    assert all(path.is_dir() for path in strays)
    assert not (tmp_path / "three").exists()


def test_log_directories_and_the_id_may_be_options_as_for_the_broker(tmp_path: Path):
    file, log_dir, target = (tmp_path / name for name in ("properties", "logs", "moved"))
    stray = stray_log(log_dir, "a")
    file.write_text(f"process.roles=broker\nlog.dirs={tmp_path / 'absent'}\n{LOGIN_ELSEWHERE}")
    without = back_with(file, target, "--log-dirs", str(log_dir))
    assert without.exit_code == 1
    assert without.stderr.rstrip().endswith("set it, or use --id")
    assert "absent is not there" in back_with(file, target, "--id", "3").stderr
    done = back_with(file, target, "--log-dirs", str(log_dir), "--id", "3")
    assert (done.exit_code, done.stdout.splitlines()) == (0, [str(target / stray.name)])
