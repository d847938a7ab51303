"""The ZooKeeper of a cluster can be changed by its own processes only."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError, NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.command_line import COMMAND
from regent.config.java import find_java
from regent.testing import RegentCluster
from regent.testing.waits import scaled
from regent.zk.client.login import SECRET_FILE, SECRET_VARIABLE, Acl, acl_of, log_in, read_login
from regent.zk.client.operations import Delete
from regent.zk.client.requests import RequestRefusedError
from regent.zk.stores.tree_acls import open_tree, secure_tree
from tests.support.free_ports import ANY_PORTS_OF_A_BROKER
from tests.support.zookeeper_sessions import apply

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

OPTIONS = ("--brokers", "1", "--no-placement-service", "--no-internal-topics")
OPEN_BY_KAFKAS_RULE = {"/consumers"}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("operator:s3cret\n")
    return secret


@contextmanager
def stranger(address: str) -> Iterator[Any]:
    client = KazooClient(address)
    client.start(scaled(20.0))
    try:
        yield client
    finally:
        client.stop()
        client.close()


def tree(client: Any, path: str = "/") -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from tree(client, f"{path.rstrip('/')}/{name}")


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(60.0),
        check=False,
        env=environment or None,
    )


def test_a_stranger_can_change_no_znode_and_reads_no_secret(tmp_path: Path) -> None:
    with RegentCluster(tmp_path, *OPTIONS) as cluster:
        cluster.create_topic("orders")
        address = cluster.description["zookeeper"]
        login = read_login(tmp_path / SECRET_FILE)
        with stranger(address) as friend, stranger(address) as client:
            friend.add_auth(*login.auth_data)
            paths = set(tree(friend))
            assert {"/", "/zookeeper", "/zookeeper/quota", "/brokers/ids/0", "/controller"} <= paths
            for path in paths - OPEN_BY_KAFKAS_RULE:
                with pytest.raises(NoAuthError):
                    client.set(path, b"stranger")
                with pytest.raises(NoAuthError):
                    client.set_acls(path, friend.get_acls("/consumers")[0])
                with pytest.raises((BadArgumentsError, NoAuthError)):
                    client.delete(path)
            for path in paths:
                if acl_of(path) is Acl.SENSITIVE:
                    with pytest.raises(NoAuthError):
                        client.get(path)
                else:
                    client.get(path)
        # A broker without the login, and a command that does not know the folder.
        other = tmp_path / "other"
        refused = run(
            "broker",
            "--id",
            "9",
            "--zookeeper",
            address,
            "--data-dir",
            other,
            *ANY_PORTS_OF_A_BROKER,
        )
        assert refused.returncode == 1
        assert "NO_AUTH: it asks for a login" in refused.stderr
        assert "secret_file" in refused.stderr
        created = run("topics", "list", "--names", "--data-dir", tmp_path)
        assert created.stdout == "orders\n", created.stderr


def test_data_of_an_earlier_version_are_secured_and_can_be_opened_again(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, str(secret))  # for another ZooKeeper
    for option, is_open in (("--no-zookeeper-login", True), ("--zookeeper-login", False)) * 2:
        with RegentCluster(tmp_path, *OPTIONS, option) as cluster:
            assert (tmp_path / SECRET_FILE).exists() is not is_open
            with stranger(cluster.description["zookeeper"]) as client:
                for path in ("/", "/brokers/topics", "/config/changes"):
                    if is_open:
                        client.set(path, b"")
                    else:
                        with pytest.raises(NoAuthError):
                            client.set(path, b"")


def test_a_secret_that_others_may_read_ends_a_broker_with_the_remedy(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("regent:x\n")
    secret.chmod(0o644)
    options = ("--zookeeper", "127.0.0.1:1", "--data-dir", tmp_path / "b", "--secret-file", secret)
    refused = run("broker", "--id", "0", *options)
    assert refused.returncode == 1
    assert (
        "has mode 0644, so other users may read ZooKeeper's login in it: make it private with"
        f" `chmod 600 {secret}`" in refused.stderr
    )


def test_kafkas_tools_log_in_as_the_same_user(tmp_path: Path) -> None:
    """They use SASL, so their znodes have another creator; brokers may change these too."""
    with RegentCluster(tmp_path, *OPTIONS) as cluster:
        told = run("zookeeper", "client-config", "--data-dir", tmp_path)
        (text,) = shlex.split(told.stdout.removeprefix("export KAFKA_OPTS="))
        options = shlex.split(text)
        jaas = Path(options[0].partition("=")[2])
        assert jaas.stat().st_mode & 0o077 == 0
        address, path = cluster.description["zookeeper"], "/config/topics/of-a-tool"
        java = [
            str(find_java().executable),
            "-cp",
            str(Path(pyspark.__file__).parent / "jars" / "*"),
        ]
        tool = ["org.apache.zookeeper.ZooKeeperMain", "-server", address, "create", path, "1"]
        subprocess.run([*java, *tool], capture_output=True, timeout=scaled(60.0), check=False)
        assert cluster.zookeeper.get(path) is None
        subprocess.run(
            [*java, *options, *tool], capture_output=True, timeout=scaled(60.0), check=True
        )
        node = cluster.zookeeper.get(path)
        assert node is not None
        assert node.data == b"1"
        apply(cluster.zookeeper, Delete(path, node.stat.version))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path / "zookeeper")
    server.start(scaled(60.0))
    yield server
    server.stop()


def test_znodes_of_others_stay_as_they_are_and_a_missing_chroot_is_named(
    server: EmbeddedZooKeeper, secret: Path
) -> None:
    where = ("--zookeeper", server.address, "--secret-file", secret)
    with stranger(server.address) as client:
        client.create("/hbase/rs", b"", makepath=True)
        client.create("/kafka/config/users", b"", makepath=True)
        for how in ("secure", "open"):
            refused = run("zookeeper", "acl", how, *where)
            assert "there are znodes of others, as /hbase: name the chroot" in refused.stderr
        client.create("/kafka/brokers/ids", b"", makepath=True)
        for how in ("secure", "open"):
            refused = run("zookeeper", "acl", how, *where)
            assert "there is one at /kafka: name that chroot" in refused.stderr
        assert all(client.get_acls(path)[0] == OPEN_ACL_UNSAFE for path in tree(client, "/kafka"))
        client.create("/brokers/ids", b"", makepath=True)
        assert run("zookeeper", "acl", "secure", *where).returncode == 0
        for path in ("/hbase", "/hbase/rs", "/kafka", "/kafka/config/users", "/zookeeper"):
            client.set(path, b"")
        for path in ("/", "/brokers", "/brokers/ids"):
            with pytest.raises(NoAuthError):
                client.set(path, b"")


def test_an_interrupted_opening_is_undone_by_the_next_securing(
    server: EmbeddedZooKeeper, secret: Path
) -> None:
    log_in(server.address, read_login(secret))
    with stranger(server.address) as owner, stranger(server.address) as client:
        client.create("/brokers/ids", b"", makepath=True)
        assert secure_tree(server.address)
        owner.add_auth("digest", "somebody:else")
        cluster = read_login(secret)
        client.add_auth(*cluster.auth_data)
        client.create("/brokers/ids/7", b"", acl=[make_digest_acl("somebody", "else", all=True)])
        with pytest.raises(RequestRefusedError):
            open_tree(server.address)
        owner.delete("/brokers/ids/7")
    assert secure_tree(server.address), "it is known that something is open"
    with stranger(server.address) as client:
        for path in ("/", "/brokers", "/brokers/ids"):
            with pytest.raises(NoAuthError):
                client.set(path, b"")


def test_the_znodes_of_another_zookeeper_are_secured_and_opened(
    server: EmbeddedZooKeeper, secret: Path
) -> None:
    with stranger(server.address) as client:
        client.create("/kafka")
        client.create("/kafka/brokers")
        where = ("--zookeeper", f"{server.address}/kafka", "--secret-file", secret)
        for how, is_open in (("secure", False), ("open", True), ("secure", False)):
            done = run("zookeeper", "acl", how, *where)
            assert done.returncode == 0, done.stderr
            if is_open:
                client.set("/kafka/brokers", b"")
            else:
                with pytest.raises(NoAuthError):
                    client.set("/kafka/brokers", b"")
        # One znode of a secured tree that somebody has opened.
        client.add_auth(*read_login(secret).auth_data)
        client.set_acls("/kafka/brokers", OPEN_ACL_UNSAFE)
        assert run("zookeeper", "acl", "secure", *where).returncode == 0
    with stranger(server.address) as client, pytest.raises(NoAuthError):
        client.set("/kafka/brokers", b"")
