"""``doctor``: its findings, its exit codes, and what it says when something is away."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from regent.broker.api.configs import ConfigView, config_apis
from regent.broker.broker_settings import broker_settings
from regent.client.doctor import examined_cluster
from regent.cluster.cluster_file import BrokerEntry, ClusterFile, ZooKeeperEntry
from regent.config.cluster_location import CLUSTER_FILE, KEYS_DIR
from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig
from regent.core.errors import Errors
from regent.core.model import BrokerInfo, EndPoint
from regent.core.protocol.messages.groups import ListGroupsResponse
from regent.core.replication.metadata_cache import MetadataCache
from regent.testing.waits import scaled
from regent.transport.control.key_files import KeysDirectory
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import encoded
from regent.zk.client.login import SECRET_FILE, Login, log_in
from regent.zk.client.operations import AclEntry, Permission
from regent.zk.znodes import ControllerZNode
from tests.support.fake_cluster import FakeCluster
from tests.support.listening_programs import listening_programs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ADDRESS = "127.0.0.1:1"  # the fake ZooKeeper's; nobody listens there
LOGIN = Login("regent", "secret")
KEYS_OF_A_FINDING = {"check", "severity", "subject", "message", "remedy", "facts"}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture(autouse=True)
def on_loopback(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGENT_ZOOKEEPER", ADDRESS)


def lead(cluster: FakeCluster) -> None:
    """Let broker 0 be the controller; it does not answer."""
    cluster.elect_another_controller()
    cluster.put("/controller", ControllerZNode.encode(0, 0))


@pytest.fixture
def secured(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster whose ZooKeeper is secured; the fake one has no logins."""
    lead(cluster)
    monkeypatch.setattr("regent.zk.client.login._logins", {})
    log_in(ADDRESS, LOGIN)
    ours = (AclEntry(~Permission(0), "digest", LOGIN.digest),)
    monkeypatch.setattr(
        "tests.support.fake_zookeeper.FakeZooKeeper.acls_many",
        lambda _self, paths: [ours for _ in paths],
    )
    return cluster


def describing(threads: ThreadPoolExecutor, broker_id: int, **settings: Any) -> Sequence[KafkaApi]:
    """The API DescribeConfigs of a broker with these settings of its table ``[broker]``."""
    given = frozenset(f"broker.{name}" for name in settings)
    described = broker_settings(Settings(broker=BrokerConfig(**settings), given=given), broker_id)
    configs = config_apis(ConfigView(broker_id, MetadataCache(), described, lambda _: {}), threads)
    return [*configs, KafkaApi(KafkaApiKey.LIST_GROUPS, 4, 4, _no_groups)]


async def _no_groups(request: KafkaRequest) -> KafkaAnswer:
    answer = ListGroupsResponse(error_code=Errors.NONE)
    return (encoded(answer, request.api_version, is_flexible=True),)


def doctor(cluster: FakeCluster, *arguments: str, exit_code: int) -> list[dict[str, Any]]:
    found = cluster.json("doctor", *arguments, exit_code=exit_code)
    assert all(finding.keys() == KEYS_OF_A_FINDING for finding in found)
    assert isinstance(found, list)
    return found


def bad(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in found if finding["severity"] != "ok"]


# --- a cluster elsewhere --------------------------------------------------------------------------


def test_a_secured_cluster_has_nothing_to_close(
    secured: FakeCluster, threads: ThreadPoolExecutor
) -> None:
    secured.add_broker(0, port=secured.listen(more=describing(threads, 0)))
    found = doctor(secured, exit_code=0)
    assert [(finding["check"], finding["subject"]) for finding in found] == [
        ("service", "broker 0"),
        ("listeners", "broker 0"),
        ("listeners", "broker 0"),
        ("zookeeper", ADDRESS),
    ]
    assert "auto.create.topics.enable=true" in found[0]["message"]
    assert found[1]["facts"] == {"listener": "PLAINTEXT", "protocol": "PLAINTEXT"}


def test_a_warning_and_a_problem_have_exit_codes_and_lines_with_the_remedy(
    secured: FakeCluster, threads: ThreadPoolExecutor
) -> None:
    settings = describing(threads, 0, local_users="any", auto_create_topics_enable=False)
    secured.add_broker(0, port=secured.listen(more=settings))
    shown = secured.run("doctor")
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert lines[0] == "Listeners of brokers:"
    assert lines[1].startswith("  warning  broker 0 has the listener PLAINTEXT (PLAINTEXT) at 127")
    assert lines[1].endswith(': set local_users = "same", or name the users')
    assert lines[-1] == "0 problems, 2 warnings"


def test_an_open_zookeeper_is_a_problem(cluster: FakeCluster, threads: ThreadPoolExecutor) -> None:
    lead(cluster)
    cluster.add_broker(0, port=cluster.listen(more=describing(threads, 0)))
    found = bad(doctor(cluster, exit_code=2))
    assert {finding["severity"] for finding in found} == {"problem"}
    assert [finding["check"] for finding in found[-2:]] == ["zookeeper", "keys"]
    assert "has no login" in found[0]["message"]
    assert 'broker_keys = "registered"' in found[-1]["message"]


# --- what is away ---------------------------------------------------------------------------------


def test_no_cluster_is_one_finding(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGENT_ZOOKEEPER")
    monkeypatch.setenv("REGENT_DATA_DIR", str(tmp_path))
    (found,) = doctor(cluster, exit_code=2)
    assert found["message"].startswith(f"no cluster in {tmp_path}: there is no cluster.json")


def test_a_cluster_file_that_cannot_be_read_is_one_finding(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    (tmp_path / CLUSTER_FILE).write_text("{")
    found = bad(doctor(cluster, "--data-dir", str(tmp_path), exit_code=2))
    assert [finding["check"] for finding in found if finding["severity"] == "problem"] == [
        "cluster"
    ]


def test_a_zookeeper_that_is_away_is_one_finding(cluster: FakeCluster) -> None:
    cluster.is_reachable = False
    (found,) = doctor(cluster, exit_code=2)
    assert found["check"] == "cluster"
    assert found["message"].startswith(f"no ZooKeeper answers at {ADDRESS}")


def test_a_broker_that_does_not_answer_is_one_finding_in_a_limited_time(
    secured: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: KafkaRequest) -> KafkaAnswer:
        raise ConnectionError("closed without an answer")

    monkeypatch.setattr(examined_cluster, "_ASK_LIMIT_S", 0.5)
    silent = [KafkaApi(KafkaApiKey.DESCRIBE_CONFIGS, 0, 4, never)]
    secured.add_broker(0, port=secured.listen(more=silent))
    secured.add_broker(1, port=1)  # nobody listens there
    began = time.monotonic()
    found = bad(doctor(secured, exit_code=2))
    assert time.monotonic() - began < scaled(10.0)
    assert [finding["subject"] for finding in found] == ["broker 0", "broker 1"]
    assert all("does not tell its settings" in finding["message"] for finding in found)


def test_a_broker_whose_listeners_need_a_login_is_examined_by_its_registration(
    secured: FakeCluster,
) -> None:
    endpoint = EndPoint("CLIENTS", "192.0.2.1", 9092, "SASL_SSL")
    secured.register_as(BrokerInfo(0, (endpoint,)))
    found = doctor(secured, exit_code=1)
    assert [(finding["check"], finding["severity"]) for finding in found] == [
        ("cluster", "warning"),
        ("listeners", "ok"),
        ("zookeeper", "ok"),
    ]
    assert found[1]["message"] == (
        "broker 0 has the listener CLIENTS (SASL_SSL) at 192.0.2.1: users who can log in may"
        " connect (SASL_SSL)"
    )


def test_a_registration_that_cannot_be_read_is_one_finding(secured: FakeCluster) -> None:
    secured.put("/brokers/ids/0", b"{")
    (found,) = bad(doctor(secured, exit_code=2))
    assert found["subject"] == "broker 0"


# --- a cluster on this machine --------------------------------------------------------------------


def test_a_socket_that_nobody_knows_is_a_problem(
    secured: FakeCluster, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    with listening_programs(data_dir) as told:
        broker, program = told["broker"], told["broker"]["program"]
        ports = {name: broker[name] for name in ("port", "control_port")}
        more = {name: broker[name] for name in ("replication_port", "metrics_port")}
        entry = BrokerEntry(0, broker["pid"], "127.0.0.1", **ports, **more)
        ClusterFile(data_dir / CLUSTER_FILE, ADDRESS, brokers={0: entry}).write()
        secured.add_broker(0, port=secured.listen(more=describing(threads, 0)))
        found = doctor(secured, "--data-dir", str(data_dir), exit_code=2)
    sockets = [finding["facts"] for finding in found if finding["check"] == "sockets"]
    assert {each["purpose"] for each in sockets if each["process"] == "broker 0"} == {
        *("listener PLAINTEXT", "followers", "control requests", "metrics"),
    }
    unknown = [finding for finding in bad(found) if finding["check"] == "sockets"]
    assert {finding["severity"] for finding in unknown} == {"problem"}
    assert [(each["facts"]["pid"], each["facts"]["kind"]) for each in unknown] == [
        (program["pid"], kind) for kind in ("tcp", "udp", "unix")
    ]
    assert all("find out what the process is" in finding["remedy"] for finding in unknown)


def test_a_cluster_that_was_killed_is_one_finding(secured: FakeCluster, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    gone = [BrokerEntry(id_, os.getpid(), "127.0.0.1", 1, 2, 3, 4) for id_ in range(3)]
    nodes = [ZooKeeperEntry(os.getpid(), 1)]  # these ids are another's now
    file = ClusterFile(tmp_path / CLUSTER_FILE, ADDRESS, nodes, {each.id: each for each in gone})
    file.write()
    file.path.chmod(0o600)
    (found,) = bad(doctor(secured, "--data-dir", str(tmp_path), exit_code=2))
    assert found["message"] == (
        f"the cluster in {tmp_path} does not run, and was not stopped in order"
    )
    assert f"cluster --data-dir {tmp_path}` starts it again" in found["remedy"]


def test_a_broker_that_has_ended_is_one_finding_with_the_command_that_starts_it(
    secured: FakeCluster, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    with listening_programs(tmp_path) as told:
        nodes = [ZooKeeperEntry(told["broker"]["pid"], 1)]  # a process that lives
        entry = BrokerEntry(1, os.getpid(), "127.0.0.1", 1, 2, 3, 4)  # its id is another's now
        ClusterFile(tmp_path / CLUSTER_FILE, ADDRESS, nodes, {1: entry}).write()
        secured.add_broker(1, port=1)  # its session is not over yet
        problems = bad(doctor(secured, "--data-dir", str(tmp_path), exit_code=2))
    (found,) = [finding for finding in problems if finding["check"] == "cluster"]
    assert found["message"].startswith(f"broker 1 does not run: its process {os.getpid()} has")
    assert found["remedy"].endswith("brokers start 1`")


def test_a_secret_that_others_may_read_does_not_stop_the_examination(
    secured: FakeCluster, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    ClusterFile(tmp_path / CLUSTER_FILE, ADDRESS).write()
    (tmp_path / CLUSTER_FILE).chmod(0o600)
    secret = tmp_path / SECRET_FILE
    secret.write_text("regent:x\n")
    secret.chmod(0o644)
    found = doctor(secured, "--data-dir", str(tmp_path), exit_code=2)
    assert [(finding["check"], finding["severity"]) for finding in found] == [
        ("cluster", "problem"),
        ("cluster", "problem"),  # none of its processes lives
        ("files", "problem"),
    ]
    for finding in (found[0], found[-1]):
        assert f"`chmod 600 {secret}`" in str(finding)


def test_files_and_keys_of_a_folder_are_examined_without_a_cluster_on_this_machine(
    secured: FakeCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    folder.chmod(0o755)
    KeysDirectory(folder / KEYS_DIR).make_operator()
    where = ("--zookeeper", ADDRESS, "--data-dir", str(folder))
    secured.add_broker(0, port=1)
    found = doctor(secured, *where, exit_code=2)
    assert [(finding["check"], finding["severity"]) for finding in found] == [
        ("cluster", "problem"),  # it does not tell its settings
        ("listeners", "ok"),
        ("listeners", "ok"),
        ("zookeeper", "ok"),
        ("files", "problem"),
        ("keys", "ok"),
        ("keys", "ok"),
    ]
