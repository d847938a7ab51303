"""How commands find their cluster, and their errors without one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from regent.core.admin.admin_requests import refuse
from regent.core.errors import Errors
from regent.core.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.zk.client.zookeeper import ZooKeeper
from tests.support.fake_cluster import ADDRESS, FakeCluster, failing, write_cluster_file


@pytest.fixture
def asked(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ZooKeeper addresses that commands opened; the environment variables are unset."""
    monkeypatch.delenv("REGENT_ZOOKEEPER")
    addresses: list[str] = []
    open_session = cluster.open

    @contextmanager
    def open_noted(address: str, limit_s: float | None) -> Iterator[ZooKeeper]:
        addresses.append(address)
        with open_session(address, limit_s) as zookeeper:
            yield zookeeper

    monkeypatch.setattr(cluster, "open", open_noted)
    return addresses


def test_a_zookeeper_address_is_enough(cluster: FakeCluster, asked: list[str]) -> None:
    assert cluster.run("topics", "list", "--zookeeper", "h:1,i:2/kafka").exit_code == 0
    assert asked == ["h:1,i:2/kafka"]


def test_a_data_directory_has_zookeepers_address(
    cluster: FakeCluster, asked: list[str], tmp_path: Path
) -> None:
    write_cluster_file(tmp_path, zookeeper="h:1/here")

    assert cluster.run("topics", "list", "--data-dir", str(tmp_path)).exit_code == 0
    assert asked == ["h:1/here"]


def test_the_default_data_directory_is_data(
    cluster: FakeCluster, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_cluster_file(tmp_path / "data", zookeeper="default:1")

    assert cluster.run("topics", "list").exit_code == 0
    assert asked == ["default:1"]


def test_the_command_line_overrides_the_environment(
    cluster: FakeCluster, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster_file(tmp_path, zookeeper="by-directory:1")
    monkeypatch.setenv("REGENT_ZOOKEEPER", "by-variable:1")

    cluster.run("topics", "list")
    cluster.run("topics", "list", "--data-dir", str(tmp_path))
    cluster.run("topics", "list", "--zookeeper", "by-option:1")
    monkeypatch.setenv("REGENT_DATA_DIR", str(tmp_path))
    cluster.run("topics", "list")
    cluster.run("topics", "list", "--zookeeper", "by-option:1", "--data-dir", str(tmp_path))

    assert asked == [
        "by-variable:1",
        "by-directory:1",
        "by-option:1",
        "by-variable:1",
        "by-option:1",
    ]


def test_without_a_cluster_file_the_error_names_the_remedy(
    cluster: FakeCluster, asked: list[str], tmp_path: Path
) -> None:
    line = failing(cluster.run("topics", "list", "--data-dir", str(tmp_path)))

    assert line.startswith(f"no cluster in {tmp_path}: there is no cluster.json; start one with")
    assert asked == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"zookeeper": "h:1"', "not JSON"),
        ('{"brokers": []}', "zookeeper is missing"),
        ('{"zookeeper": 5, "brokers": []}', "zookeeper must be a string"),
        ('{"zookeeper": "h:1"}', "brokers is missing"),
        ('{"zookeeper": "h:1", "brokers": [{"id": 0, "pid": 1}]}', "host is missing"),
        (
            '{"zookeeper": "h:1", "brokers": [], "zookeeper_nodes": [], "placement": {}}',
            "pid is missing",
        ),
    ],
)
def test_a_broken_cluster_file_is_named(
    cluster: FakeCluster, asked: list[str], tmp_path: Path, content: str, problem: str
) -> None:
    (tmp_path / "cluster.json").write_text(content)

    line = failing(cluster.run("topics", "list", "--data-dir", str(tmp_path)))

    assert line.startswith(f"{tmp_path}/cluster.json: ")
    assert problem in line
    assert asked == []


def test_a_complete_cluster_file_is_read(
    cluster: FakeCluster, asked: list[str], tmp_path: Path
) -> None:
    content = {
        "zookeeper": "127.0.0.1:2181",
        "zookeeper_nodes": [{"pid": 1, "port": 2181}],
        "brokers": [
            {
                "id": 0,
                "pid": 2,
                "host": "127.0.0.1",
                "port": 9092,
                "control_port": 19092,
                "replication_port": 29092,
                "metrics_port": 39092,
            }
        ],
        "placement": {"pid": 3, "endpoint": "tcp://127.0.0.1:5555"},
    }
    (tmp_path / "cluster.json").write_text(json.dumps(content))

    assert cluster.run("topics", "list", "--data-dir", str(tmp_path)).exit_code == 0
    assert asked == ["127.0.0.1:2181"]


def test_a_command_that_cannot_connect_as_the_listeners_ask_is_told_at_once(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    content = {
        "zookeeper": "127.0.0.1:2181",
        "zookeeper_nodes": [],
        "brokers": [
            {
                "id": 0,
                "pid": 2,
                "host": "127.0.0.1",
                "port": 9092,
                "control_port": 19092,
                "replication_port": 29092,
                "metrics_port": 39092,
                "listeners": ["SASL_SSL://127.0.0.1:9092"],
            }
        ],
        "placement": None,
    }
    (tmp_path / "cluster.json").write_text(json.dumps(content))
    result = cluster.run("topics", "create", "t", "--partitions", "1", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "no broker listens for PLAINTEXT: does security.protocol" in result.stderr


def test_a_zookeeper_that_does_not_answer_is_named(cluster: FakeCluster) -> None:
    cluster.is_reachable = False

    for command in (("topics", "list"), ("brokers", "list"), ("controller", "show")):
        line = failing(cluster.run(*command))
        assert line == f"no ZooKeeper answers at {ADDRESS}: is the cluster running?"


def test_a_session_that_ends_during_a_command_is_one_line(cluster: FakeCluster) -> None:
    cluster.hook = lambda _: cluster.zookeeper.expire(1)
    assert "no ZooKeeper answers" in failing(cluster.run("brokers", "list"))


def test_a_zookeeper_without_a_cluster_is_an_error(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "zookeeper", type(cluster.zookeeper)())

    for command, path in ((("brokers", "list"), "ids"), (("topics", "list"), "topics")):
        assert failing(cluster.run(*command)) == (
            f"no cluster at {ADDRESS}: it has no /brokers/{path}: "
            "no broker has ever started there, or the znode was deleted"
        )


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "create", "t", "--partitions", "1"),
        ("topics", "alter", "t", "--partitions", "2"),
        ("topics", "config", "t"),
        ("topics", "delete", "t"),
        ("elect-leaders", "--election-type", "preferred", "--all-topic-partitions"),
        ("reassign", "--list"),
        ("controller", "show"),
        ("controller", "move"),
        ("brokers", "pid", "controller"),
    ],
)
def test_a_command_for_the_controller_does_not_wait_where_no_cluster_is(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(cluster, "zookeeper", type(cluster.zookeeper)())

    assert failing(cluster.run(*command)) == (
        f"no cluster at {ADDRESS}: it has no /brokers/topics: "
        "no broker has ever started there, or the znode was deleted"
    )


def test_an_invalid_address_is_a_usage_error() -> None:
    from regent.client.cluster_connection import open_session

    with pytest.raises(click.UsageError, match="ZooKeeper address 'a:b:c'"):
        open_session("a:b:c", None).__enter__()


# --- brokers instead of a cluster -----------------------------------------------------------------

CREATE = ("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")


def test_brokers_of_the_command_line_or_the_environment_are_asked_without_zookeeper(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.with_brokers(1)
    cluster.is_reachable = False
    servers = f"127.0.0.1:1,127.0.0.1:{cluster.listen()}"

    assert cluster.run(*CREATE, "--bootstrap-server", servers).exit_code == 0
    monkeypatch.setenv("REGENT_BOOTSTRAP_SERVER", servers)
    assert failing(cluster.run(*CREATE)) == "topic t already exists"
    assert "no ZooKeeper answers" in failing(cluster.run(*CREATE, "--zookeeper", ADDRESS))


@pytest.mark.parametrize("command", [("users", "list"), ("consume", "t"), ("groups", "list")])
def test_brokers_of_the_environment_are_not_another_cluster_in_the_default_folder(
    cluster: FakeCluster,
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Sequence[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_cluster_file(tmp_path / "data", zookeeper="other:1")
    monkeypatch.setenv("REGENT_BOOTSTRAP_SERVER", "127.0.0.1:1")

    assert failing(cluster.run(*command)) == (
        "REGENT_BOOTSTRAP_SERVER has no ZooKeeper, and this command needs it: name the cluster with"
        " --zookeeper or --data-dir"
    )
    assert cluster.run("topics", "list", "--data-dir", "data").exit_code == 0
    monkeypatch.setenv("REGENT_DATA_DIR", "data")
    assert cluster.run("topics", "list").exit_code == 0
    assert asked == ["other:1", "other:1"]


@pytest.mark.parametrize("servers", ["", "host", "host:", ":9092", "host:no", "host:70000", "a:1,"])
def test_brokers_are_hosts_with_ports(cluster: FakeCluster, servers: str) -> None:
    cluster.is_reachable = False
    result = cluster.run(*CREATE, "--bootstrap-server", servers)
    if servers:
        assert result.exit_code == 2
        assert "--bootstrap-server must be HOST:PORT[,…]" in result.stderr
    else:
        assert "no ZooKeeper answers" in failing(result)


def test_a_topic_is_deleted_without_zookeeper(cluster: FakeCluster) -> None:
    def decide(request: TopicsRequest) -> TopicsResponse:
        response = cluster.decide(request)
        assert isinstance(response, DeleteTopicsResponse)
        assert isinstance(request, DeleteTopicsRequest)
        is_late = request.waits and request.timeout_ms < 1_000
        return refuse(request, Errors.REQUEST_TIMED_OUT, "still there") if is_late else response

    cluster.with_brokers(1)
    cluster.put_topic("t", {0: (0,)})
    cluster.is_reachable = False
    delete = ("topics", "delete", "t", "--bootstrap-server", f"127.0.0.1:{cluster.listen(decide)}")

    assert cluster.run(*delete).stdout == "Topic t is marked for deletion.\n"
    assert cluster.run(*delete, "--wait").stdout == "Topic t is deleted.\n"
    late = cluster.run(*delete, "--wait", "--timeout-ms", "10")
    assert (late.exit_code, late.stdout) == (1, "Topic t is marked for deletion.\n")
    assert late.stderr == "regent: topic t is not deleted yet\n"
