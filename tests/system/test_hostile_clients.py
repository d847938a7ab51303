"""A broker process beside clients that send nonsense, too much, or nothing."""

from __future__ import annotations

import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

import msgpack
import pytest
import zmq

from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.transport.control.key_files import BROKER_SECRET, KeyPair, read_secret
from regent.transport.control.sockets import connect_to, new_context, pieces
from tests.support import fuzzed_frames
from tests.support.fuzzed_requests import ask, ask_versions, framed, genuine_requests, request
from tests.support.record_batches import batch
from tests.transport.kafka.raw_client import RawClient

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TOPIC = "t"
MAX_CONNECTIONS = 60
SETTINGS = f"[broker]\nmax_connections = {MAX_CONNECTIONS}\n"
MANY = 24
CHANGED = 400
EXPIRIES = "kafka_server_sessionexpirelistener_zookeeperexpirespersec"


class Broker(RegentCluster):
    """A cluster with one broker."""

    def __init__(self, folder: Path) -> None:
        config = folder / "broker.toml"
        config.write_text(SETTINGS)
        super().__init__(
            folder / "cluster", "--brokers", "1", "--no-placement-service", "--config", str(config)
        )
        self.create_topic(TOPIC)
        self.await_agreement([0], TOPIC)
        host, port = self.bootstrap_servers.rsplit(":", 1)
        self.address = host, int(port)
        self.port = int(port)

    def produce(self, size: int) -> bytes:
        """Produce a record of this size; return the answer."""
        data = batch(bytes(size))
        body = struct.pack(">hhii", -1, -1, 10_000, 1) + struct.pack(">h", 1) + TOPIC.encode()
        body += struct.pack(">iii", 1, 0, len(data)) + data
        return ask(self.address, request(0, 7, body))

    @property
    def own_keys(self) -> KeyPair:
        """The keys of the broker."""
        return read_secret(self.data_dir / "broker-0" / BROKER_SECRET)

    def peak_mb(self) -> float:
        """The peak of the process's memory since ``forget_peak``."""
        status = Path(f"/proc/{self.pid(0)}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1000

    def forget_peak(self) -> float:
        """Reset the peak; return the present memory."""
        Path(f"/proc/{self.pid(0)}/clear_refs").write_text("5")
        return self.peak_mb()

    def log(self) -> str:
        """The broker's log."""
        return (self.data_dir / "broker-0" / "broker.log").read_text()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("hostile")) as broker:
        yield broker


def test_clients_that_announce_much_and_send_nothing_do_not_block_others(broker: Broker) -> None:
    with ExitStack() as silent:
        for _ in range(8):
            client = silent.enter_context(RawClient(broker))
            client.send(struct.pack(">ihhi", 104_857_600, 0, 7, 1))
        assert b"\0\0" in broker.produce(900_000)
        assert ask_versions(broker.address)


@pytest.mark.parametrize("has_key", [False, True])
def test_hostile_bodies_between_brokers_take_neither_time_nor_memory(
    broker: Broker, has_key: bool
) -> None:
    port = broker.description["brokers"][0]["control_port"]
    before = broker.forget_peak()
    context = new_context(broker.own_keys) if has_key else zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(4)]
    try:
        for number in range(MANY):
            size = 62_000_000 if number < 2 else 2_900_000
            element = (b"\x90", b"\x91\x90", b"\x80", b"\0")[number % 4]
            count = min(size // len(element), 1_000_000)
            array = b"\xdd" + struct.pack(">I", count) + element * count
            header = [1, ApiKey.UPDATE_METADATA, 0, number, "x", 0, 9, -1, 0, 0]
            frames = [b"", msgpack.packb(header), b"\x81\xa6topics" + array]
            peer = sockets[number % 4]
            if has_key:
                connect_to(peer, broker.control_endpoint(0))
                peer.send_multipart(list(pieces(frames)))
            else:
                peer.connect(f"tcp://127.0.0.1:{port}")
                with suppress(zmq.Again):  # it was refused, and does not connect again
                    peer.send_multipart(frames, zmq.NOBLOCK)
            assert ask_versions(broker.address)
        assert broker.produce(100)
        limit = 200 if has_key else 32
        assert broker.peak_mb() - before < limit, "the memory that four peers can occupy"
        assert broker.metrics(0)[EXPIRIES] == 0
    finally:
        context.destroy(linger=0)


def test_changed_control_requests_do_no_harm(broker: Broker) -> None:
    own = new_context(broker.own_keys)
    target = fuzzed_frames.Target(broker.control_endpoint(0), (broker.context, own))
    epoch = broker.broker_epoch(0)
    assert epoch is not None
    commander = ControlHeader(0, broker.controller_epoch(), epoch, broker_id=0)
    before = broker.forget_peak()
    sent = fuzzed_frames.conversations(commander, CHANGED, random.Random("control"))
    while some := list(islice(sent, MANY)):
        fuzzed_frames.talk(target, some)
    own.destroy(linger=0)
    assert fuzzed_frames.answers_an_operator(target)
    assert broker.produce(100)
    assert "Traceback" not in broker.log()
    assert broker.peak_mb() - before < 64
    assert broker.metrics(0)[EXPIRIES] == 0


def test_truncated_requests_log_no_traceback(broker: Broker) -> None:
    for data in genuine_requests(ask_versions(broker.address)):
        with RawClient(broker) as client:
            client.send(framed(data[: len(data) - 3]) + framed(data[:-1]))
        with RawClient(broker) as client:
            client.send(framed(data)[:-1])
    assert ask_versions(broker.address)
    assert "Traceback" not in broker.log()


def test_a_broker_survives_a_shortage_of_file_descriptors(broker: Broker) -> None:
    pid = broker.pid(0)
    before, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def notices() -> bool:
        used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
        none_left = min(set(range(len(used) + 1)) - used)  # again: it may have closed one
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (none_left, most))
        return "checkpoint: Too many open files" in broker.log()

    try:
        eventually(notices, "it has noticed")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (before, most))
    assert b"\0\0" in broker.produce(100)
    assert broker.pid(0) == pid
    assert "is offline" not in broker.log()


def test_status_warns_when_the_limit_of_connections_is_reached(broker: Broker) -> None:
    with ExitStack() as idle:
        for _ in range(MAX_CONNECTIONS + 1):
            idle.enter_context(RawClient(broker))

        def warned() -> bool:
            return any("max_connections" in line for line in broker.status()["warnings"])

        eventually(warned, "status warns that clients wait")
    assert ask_versions(broker.address)


STRANGER = """
import socket, sys
for said, port in zip(map(bytes.fromhex, sys.argv[1::2]), map(int, sys.argv[2::2])):
    heard = b""
    try:
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            connection.sendall(said)
            while some := connection.recv(1000):
                heard += some
    except ConnectionError:
        pass
    print(port, len(heard))
"""
GREETING_BYTES = 64  # of ZeroMQ, which says the same to everybody


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs of other users")
def test_no_port_answers_another_user_of_the_machine(broker: Broker) -> None:
    (ports,) = broker.description["brokers"]
    kafka = framed(request(18, 0, b""))
    greeting = b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)
    said = {"port": kafka, "replication_port": kafka, "control_port": greeting}
    said["metrics_port"] = b"GET /metrics HTTP/1.0\r\n\r\n"
    arguments = [part for name, data in said.items() for part in (data.hex(), str(ports[name]))]
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *arguments],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=scaled(100),
        check=True,
    )
    lines = (line.split() for line in done.stdout.splitlines())
    heard = {int(port): int(count) for port, count in lines}
    assert heard.pop(ports["control_port"]) <= GREETING_BYTES
    assert heard == {ports[name]: 0 for name in said if name != "control_port"}
    assert ask_versions(broker.address)
