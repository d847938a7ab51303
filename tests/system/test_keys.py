"""What the owner of a key of a real cluster may do, and how keys are replaced while it runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regent.config.cluster_location import KEYS_DIR
from regent.config.command_line import COMMAND
from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.broker import DescribeMetadataRequest, ShutdownBrokerRequest
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrType,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionRow,
    ControlledShutdownRequest,
)
from regent.testing.regent_cluster import START_TIMEOUT_S, RegentCluster
from regent.testing.waits import scaled
from regent.transport.control.client import (
    PeerUnreachableError,
    RequestClient,
    RequestFailedError,
)
from regent.transport.control.key_files import (
    BROKER_SECRET,
    KeyPair,
    KeysDirectory,
    new_key_pair,
    read_secret,
)
from regent.transport.control.sockets import new_context

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_MS = round(scaled(10_000))
ORDERS = (
    LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ()),
    StopReplicaRequest(()),
    UpdateMetadataRequest((), (), is_full=True),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    options = ("--no-placement-service", "--no-internal-topics")
    with RegentCluster(tmp_path_factory.mktemp("keys") / "c", *options) as cluster:
        cluster.create_topic("t")
        yield cluster


def keys_of(cluster: RegentCluster, broker_id: BrokerId) -> KeyPair:
    return read_secret(cluster.data_dir / f"broker-{broker_id}" / BROKER_SECRET)


@contextmanager
def client_of(
    cluster: RegentCluster, keys: KeyPair, broker_id: BrokerId
) -> Iterator[RequestClient]:
    """A client with these keys of a broker."""
    context = new_context(keys)
    client = RequestClient(context, cluster.control_endpoint(broker_id), client_id="test")
    try:
        yield client
    finally:
        client.close()
        context.destroy(linger=0)


def refusal(client: RequestClient, request: Any, header: ControlHeader | None = None) -> Errors:
    """Return the error of a request."""
    with pytest.raises(RequestFailedError) as caught:
        client.request(request, control_header=header, timeout_ms=TIMEOUT_MS)
    return caught.value.error_code


def test_a_stranger_is_not_heard(cluster: RegentCluster) -> None:
    with client_of(cluster, new_key_pair(), 0) as client, pytest.raises(PeerUnreachableError):
        client.request(DescribeMetadataRequest(()), timeout_ms=TIMEOUT_MS)


def test_commands_that_know_a_broker_and_have_our_key_need_no_zookeeper(
    cluster: RegentCluster, tmp_path: Path
) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        variables = {n: v for n, v in os.environ.items() if not n.startswith("REGENT_")}
        return subprocess.run(
            [*COMMAND, *arguments, "--bootstrap-server", cluster.bootstrap_server(1)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**variables, "XDG_CONFIG_HOME": str(tmp_path)},
            timeout=scaled(60),
            check=False,
        )

    keys = ("--keys", str(cluster.data_dir / KEYS_DIR))
    status = json.loads(run("status", *keys, "-o", "json").stdout)
    assert (status["healthy"], status["reasons"]) == (True, [])
    assert [broker["id"] for broker in status["brokers"]] == [0, 1, 2]
    assert "t: new topic" in run("events", *keys).stdout
    doctor = run("doctor", *keys, "--watch-groups", "0", "-o", "json")
    assert {row["severity"] for row in json.loads(doctor.stdout)} <= {"ok", "warning"}
    assert "is our key allowed there?" in run("events").stderr


def test_a_broker_gives_no_orders(cluster: RegentCluster) -> None:
    controller, epoch = cluster.await_controller(), cluster.controller_epoch()
    impostor, victim = (b for b in cluster.brokers if b != controller)
    registration = cluster.broker_epoch(victim)
    assert registration is not None
    in_its_name = ControlHeader(controller, epoch, registration, broker_id=victim)
    with client_of(cluster, keys_of(cluster, impostor), victim) as client:
        for order in ORDERS:
            for header in (in_its_name, in_its_name._replace(controller_epoch=2**31 - 3)):
                assert refusal(client, order, header) is Errors.CLUSTER_AUTHORIZATION_FAILED
            own = ControlHeader(impostor, 2**31 - 3, registration, broker_id=victim)
            assert refusal(client, order, own) is Errors.NOT_CONTROLLER
        assert refusal(client, ShutdownBrokerRequest()) is Errors.CLUSTER_AUTHORIZATION_FAILED
    with client_of(cluster, KeysDirectory(cluster.data_dir / "keys").operator(), victim) as client:
        for order in ORDERS:
            assert refusal(client, order, in_its_name) is Errors.CLUSTER_AUTHORIZATION_FAILED
    assert cluster.metadata(victim).controller_epoch == epoch
    name = f'regent_control_requests_unauthorized{{sender="broker-{impostor}"}}'
    assert cluster.metrics(victim)[name] >= 7


def test_a_broker_does_not_speak_for_another(cluster: RegentCluster) -> None:
    controller = cluster.await_controller()
    impostor, victim = (b for b in cluster.brokers if b != controller)
    registration = cluster.broker_epoch(victim) or 0
    proposal = AlterPartitionRow("t", 0, None, 0, (impostor,), (-1,), 0, 0)
    with client_of(cluster, keys_of(cluster, impostor), controller) as client:
        for request in (
            AlterPartitionRequest(victim, registration, (proposal,)),
            ControlledShutdownRequest(victim, registration),
        ):
            assert refusal(client, request) is Errors.CLUSTER_AUTHORIZATION_FAILED
    assert sorted(cluster.partition_states("t")[0].leader_and_isr.isr) == cluster.brokers


def regent(cluster: RegentCluster, *command: str | Path) -> str:
    """Run a command with the data directory of the cluster; return what it prints."""
    done = subprocess.run(
        [*COMMAND, *command, "--data-dir", cluster.data_dir],
        capture_output=True,
        text=True,
        timeout=scaled(START_TIMEOUT_S),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_keys_are_replaced_while_the_cluster_serves(cluster: RegentCluster) -> None:
    directory = KeysDirectory(cluster.data_dir / "keys")
    old = directory.operator()
    regent(cluster, "keys", "rotate")
    cluster.use_keys(directory.operator())
    assert "ok" in regent(cluster, "status"), "the new key is allowed at once"
    with client_of(cluster, old, 0) as client, pytest.raises(PeerUnreachableError):
        client.request(DescribeMetadataRequest(()), timeout_ms=TIMEOUT_MS)
    old = keys_of(cluster, 2)
    new = regent(cluster, "keys", "rotate", "--broker", cluster.data_dir / "broker-2")
    assert regent(cluster, "topics", "create", "u", "--partitions", "3")
    regent(cluster, "brokers", "shutdown", "2")
    regent(cluster, "brokers", "start", "2")
    assert directory.allowed()["broker-2"] == [new] != [old.public]
    cluster.await_agreement(cluster.brokers, "t")
    with client_of(cluster, old, 0) as client, pytest.raises(PeerUnreachableError):
        client.request(DescribeMetadataRequest(()), timeout_ms=TIMEOUT_MS)
