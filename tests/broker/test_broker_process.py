"""A broker from start to end, in this process, with a real ZooKeeper."""

from __future__ import annotations

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from regent import __version__
from regent.broker import broker_process
from regent.broker.broker_process import BrokerOptions, BrokerProcess
from regent.broker.broker_storage import BrokerStorage
from regent.broker.delegation_token_service import BrokerDelegationTokens
from regent.config.addresses import keyed_endpoint
from regent.config.private_files import write_private
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.admin.dynamic_config_manager import DynamicConfigManager
from regent.core.errors import Errors, RegentError
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from regent.core.security.acl_cache import AclCache
from regent.storage.log.log_loader import load_log
from regent.testing.waits import eventually, scaled
from regent.transport.control.client import RequestClient, RequestFailedError
from regent.transport.control.codec import CONTROL_VERSION
from regent.transport.control.key_files import BROKER_SECRET, secret_at
from regent.transport.control.sockets import new_context
from regent.zk.client.connection import ConnectionState
from regent.zk.client.operations import Create
from regent.zk.client.orphaned_session import close_session
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.broker_ends import read_ends
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import BrokerIdZNode, ControllerZNode
from tests.support.connected_sessions import Session
from tests.support.followed_configs import reconfigurables
from tests.support.free_ports import free_ports, on_free_ports
from tests.support.killed_threads import kill_thread
from tests.support.world import topic_id
from tests.transport.control.raw_peer import TIMEOUT_MS

pytestmark = pytest.mark.zookeeper

BROKER = 1
HEADER = ControlHeader(BROKER, 1, -1, broker_id=BROKER)  # it is elected, in epoch 1
LEADING = LeaderAndIsrPartition(0, 1, BROKER, 0, (BROKER,), 0, (BROKER,), (), (), True, 0)
REQUESTS = (
    LeaderAndIsrRequest(
        LeaderAndIsrType.INCREMENTAL, (LeaderAndIsrTopic("t", topic_id(1), (LEADING,)),), ()
    ),
    UpdateMetadataRequest((), ()),
)


def test_control_requests_before_the_registration_are_refused(
    zookeeper_address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="regent.broker.broker_registration")
    former_session = Session(zookeeper_address).client
    reader = Session(zookeeper_address).client
    path = BrokerIdZNode.path(BROKER)
    former_session.multi([Create("/brokers"), Create("/brokers/ids"), Create(path, ephemeral=True)])
    (port,) = free_ports(1)
    settings = on_free_ports(Settings())
    broker_config = dataclasses.replace(
        settings.broker,
        control_port=port,
        rack="r1",
        node_host="m1",
        no_replicas=True,
        thread_name_prefix="b1",
    )
    process = BrokerProcess(
        BrokerOptions(BROKER, zookeeper_address, tmp_path),
        dataclasses.replace(settings, broker=broker_config),
    )
    is_started = threading.Event()

    def run() -> None:
        process.start()
        is_started.set()
        process.wait()
        process.shut_down()

    keys = secret_at(tmp_path / BROKER_SECRET)
    with new_context(keys) as context, ThreadPoolExecutor(1, "main") as executor:
        client = RequestClient(
            context, keyed_endpoint(f"tcp://127.0.0.1:{port}", keys.public), client_id="test"
        )
        others = threading.enumerate()
        running = executor.submit(run)
        try:
            eventually(lambda: "registered by another process" in caplog.text, "it waits")
            for request in REQUESTS:
                with pytest.raises(RequestFailedError) as caught:
                    client.request(request, control_header=HEADER, timeout_ms=TIMEOUT_MS)
                assert caught.value.error_code is Errors.BROKER_NOT_AVAILABLE
            assert not list(tmp_path.rglob("meta.properties")), "it can join another cluster"
            former_session.close()
            assert is_started.wait(scaled(20))
            assert not list(tmp_path.rglob("t-0"))
            (registered,) = reader.get_many([path])
            assert registered is not None
            assert json.loads(registered.data)["rack"] == "r1"
            assert json.loads(registered.data)["node_host"] == "m1"
            assert json.loads(registered.data)["release"] == __version__
            assert json.loads(registered.data)["control_version"] == CONTROL_VERSION
            assert json.loads(registered.data)["no_replicas"] is True
            present = HEADER._replace(broker_epoch=registered.stat.czxid)
            answer = client.request(REQUESTS[1], control_header=present, timeout_ms=TIMEOUT_MS)
            assert isinstance(answer, UpdateMetadataResponse)
            names = {thread.name for thread in threading.enumerate() if thread not in others}
            assert {"b1:broker-1", "b1:zookeeper-io", "b1:metrics-server"} <= names
            assert [name for name in names if not name.startswith("b1:")] == ["main_0"]
            parts = {type(part) for part in process._configs._brokers._parts}
            assert parts == reconfigurables().keys(), "_follow_configs passes each to the manager"
        finally:
            process.request_stop(at_once=True)
            client.close()
            reader.close()
            running.result(scaled(30))


def test_a_broker_that_loads_its_logs_is_alive_and_says_how_far_it_is(
    zookeeper_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / "log" / f"t-{number}").mkdir(parents=True)
    goes_on, real = threading.Event(), load_log

    def slow(path: Path, *args: Any, **named: Any) -> Any:
        assert path.name != "t-1" or goes_on.wait(scaled(30))
        return real(path, *args, **named)

    monkeypatch.setattr("regent.storage.directory_logs.load_log", slow)
    (port,) = free_ports(1)
    settings = on_free_ports(Settings())
    on_port = dataclasses.replace(settings.broker, metrics_port=port)
    process = BrokerProcess(
        BrokerOptions(BROKER, zookeeper_address, tmp_path),
        dataclasses.replace(settings, broker=on_port),
    )

    def asked(path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=scaled(10))
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()
        except OSError:
            return 0, "it does not listen yet"
        finally:
            connection.close()

    with ThreadPoolExecutor(1, "main") as executor:
        address = executor.submit(process.start)
        try:
            said = (503, "the broker starts: 1 of 3 logs are loaded")
            eventually(lambda: asked("/ready") == said, "it loads the second log")
            assert asked("/health") == (200, "yes")
            assert asked("/controller")[0] == 503
            status, text = asked("/metrics")
            assert (status, "kafka_" in text, "process_cpu" in text) == (200, False, True)
            goes_on.set()
            assert address.result(scaled(30))["metrics_port"] == port
            assert "kafka_" in asked("/metrics")[1]
        finally:
            goes_on.set()
            with suppress(RegentError):
                address.result(scaled(30))
            process.request_stop(at_once=True)
            process.shut_down()


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (broker_process, "join_cluster"),
        (DynamicConfigManager, "load"),
        (ZkControllerStore, "create_persistent_paths"),
        (AclCache, "start"),
        (DynamicConfigManager, "catch_up"),
        (BrokerStorage, "note_that_no_log_is_lost"),
        (broker_process, "register"),
        (BrokerDelegationTokens, "load"),
    ],
)
def test_a_broker_that_starts_goes_on_in_the_next_session(
    zookeeper_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    step: str,
) -> None:
    write_private(tmp_path / "tokens.secret", "a secret of more than 16 bytes")
    settings = load_settings(
        None,
        {
            "authorizer": {"authorizer_class_name": "kafka.security.authorizer.AclAuthorizer"},
            "delegation_tokens": {
                "delegation_token_secret_key_file": str(tmp_path / "tokens.secret")
            },
        },
    )
    options = BrokerOptions(BROKER, zookeeper_address, tmp_path)
    process = BrokerProcess(options, on_free_ports(settings))
    real, ended = getattr(owner, step), list[int]()

    def after_a_lost_session(*args: Any, **named: Any) -> Any:
        if not ended:
            client = process._keeper.client
            ended.append(client.session_id)
            close_session(zookeeper_address, client.credentials, scaled(10))
            eventually(lambda: client.state is ConnectionState.LOST, "the loss")
        return real(*args, **named)

    monkeypatch.setattr(owner, step, after_a_lost_session)
    distrust, distrusted = AclCache.distrust, threading.Event()

    def noted(acls: AclCache) -> None:
        distrusted.set()
        distrust(acls)

    monkeypatch.setattr(AclCache, "distrust", noted)
    process.start()
    try:
        assert ended
        assert ended[0] != process._keeper.session_id
        (registered,) = process._keeper.get_many([BrokerIdZNode.path(BROKER)])
        assert registered is not None
        assert registered.stat.ephemeral_owner == process._keeper.session_id
        assert distrusted.wait(scaled(10)), "the ACLs of the session that ended are trusted"
    finally:
        process.request_stop(at_once=True)
        process.shut_down()


def test_of_the_parts_that_follow_metadata_one_that_fails_holds_up_no_other(
    zookeeper_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = BrokerOptions(BROKER, zookeeper_address, tmp_path)
    process = BrokerProcess(options, on_free_ports(Settings()))
    process.start()
    try:
        seen: list[object] = []
        parts = (process._keys, process._topics, process._groups, process._transactions)
        for part in parts:
            name = "wake" if part is process._topics else "on_metadata_changed"

            def fail(*_: object, part: object = part) -> None:
                seen.append(part)
                raise RuntimeError("a fault")

            monkeypatch.setattr(part, name, fail)
        with pytest.raises(RuntimeError, match="a fault"):
            process._on_metadata_changed()
        assert seen == list(parts)
    finally:
        monkeypatch.undo()
        process.request_stop(at_once=True)
        process.shut_down()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("name", "function"), [("control-server", "_take_turn"), ("keys-reader", "_read_when_asked")]
)
def test_a_broker_ends_when_a_thread_that_lets_others_in_has_died(
    zookeeper_address: str, tmp_path: Path, name: str, function: str
) -> None:
    process = BrokerProcess(
        BrokerOptions(BROKER, zookeeper_address, tmp_path), on_free_ports(Settings())
    )
    process.start()
    try:
        kill_thread(name, function)
        process._keys.read_again(lambda: None)  # a thread that waits dies when it goes on
        with ThreadPoolExecutor(1, "main") as executor:
            executor.submit(process.wait).result(scaled(30))
    finally:
        process.request_stop(at_once=True)
        with pytest.raises(RegentError, match=f"the thread {name} has ended"):
            process.shut_down()
    reader = ZooKeeperClient(zookeeper_address, 6_000, on_watch=lambda _: None)
    reader.start(scaled(10))
    try:
        assert f"the thread {name} has ended" in read_ends(reader)[BROKER].reason
    finally:
        reader.close()


@pytest.mark.parametrize("at_once", [False, True])
def test_a_broker_leaves_zookeeper_after_its_logs_if_the_controller_let_it_go(
    zookeeper_address: str, tmp_path: Path, *, at_once: bool
) -> None:
    """Who stops a broker waits until it is not registered: then its folder can be used again.

    The controller is another one before that. If none moved the leaderships, the end of the session
    does, and comes first.
    """
    process = BrokerProcess(
        BrokerOptions(BROKER, zookeeper_address, tmp_path), on_free_ports(Settings())
    )
    reader = ZooKeeperClient(zookeeper_address, 6_000, on_watch=lambda _: None)
    reader.start(scaled(10))
    paths = BrokerIdZNode.path(BROKER), ControllerZNode.PATH
    found: list[tuple[bool, ...]] = []

    def look() -> None:
        found.append(tuple(node is not None for node in reader.get_many(paths)))

    process.start()
    try:
        eventually(lambda: process._cache.snapshot.controller_id == BROKER, "it is the controller")
        look()
        process._storage._undo.callback(look)  # runs as the first step of the close
        process._undo.callback(look)  # nothing has been stopped
    finally:
        process.request_stop(at_once=at_once)
        process.shut_down()
    look()
    reader.close()
    assert found == [(True, True), (True, True), (not at_once, False), (False, False)]
    assert list(tmp_path.rglob(".kafka_cleanshutdown"))


def test_a_process_registers_with_one_time_in_all_its_sessions(
    zookeeper_address: str, tmp_path: Path
) -> None:
    """`restart` tells a broker that has restarted from one in another session by this time."""
    process = BrokerProcess(
        BrokerOptions(BROKER, zookeeper_address, tmp_path), on_free_ports(Settings())
    )
    reader = ZooKeeperClient(zookeeper_address, 6_000, on_watch=lambda _: None)
    reader.start(scaled(10))
    path = BrokerIdZNode.path(BROKER)

    def registered() -> tuple[int, str] | None:
        (node,) = reader.get_many([path])
        return None if node is None else (node.stat.czxid, json.loads(node.data)["timestamp"])

    process.start()
    try:
        first = registered()
        assert first is not None
        close_session(zookeeper_address, process._keeper.client.credentials, scaled(10))
        eventually(lambda: registered() not in (None, first), "it is registered in another session")
        again = registered()
        assert again is not None
        assert (again[0] > first[0], again[1]) == (True, first[1])
    finally:
        process.request_stop(at_once=True)
        process.shut_down()
        reader.close()
