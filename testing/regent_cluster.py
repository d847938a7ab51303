"""A real cluster: real ZooKeeper, real brokers, real signals; all of it gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self, TypeVar

from regent.config.command_line import COMMAND
from regent.core.errors import BadDataError, RegentError
from regent.core.model import (
    BrokerId,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from regent.transport.remote_ref import RemoteActorRef
from regent.transport.sockets import new_context
from regent.zk.client.operations import Create
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.codecs.znodes import (
    ControllerEpochZNode,
    ControllerZNode,
    TopicPartitionStateZNode,
    TopicZNode,
    encode_topic_id,
)

T = TypeVar("T")

SESSION_TIMEOUT_MS = 2000
START_TIMEOUT_S = 60.0
TIMEOUT_S = 20.0
POLL_S = 0.02  # between looks at another process, which cannot tell us when it has changed


def eventually(look: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """Return the first true result of ``look``, which may fail as long as it likes."""
    deadline = monotonic() + timeout_s
    problem: object = None
    while True:
        try:
            seen = look()
            if seen:
                return seen
            problem = seen
        except (RegentError, OSError, LookupError) as error:
            problem = error
        if monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s} s; last: {problem!r}")
        sleep(POLL_S)


class ObservedCluster:
    """What ZooKeeper says of a running cluster."""

    zookeeper: ZooKeeperClient

    def control_endpoint(self, broker_id: BrokerId) -> str:
        """Return where a registered broker takes requests."""
        node = self.zookeeper.get(f"/brokers/ids/{broker_id}")
        if node is None:
            raise LookupError(f"broker {broker_id} is not registered")
        endpoint: str = json.loads(node.data)["control_endpoint"]
        return endpoint

    def controller(self) -> BrokerId | None:
        """Return who rules according to ZooKeeper; None when nobody does, or nobody can tell."""
        node = self.zookeeper.get(ControllerZNode.PATH)
        with suppress(BadDataError):
            return None if node is None else ControllerZNode.decode(node.data)
        return None

    def ruler(self) -> BrokerId:
        """Return the active controller, as soon as there is one."""
        (rules,) = eventually(
            lambda: [found for found in [self.controller()] if found is not None], "somebody rules"
        )
        return rules

    def controller_epoch(self) -> int:
        """Return the controller epoch."""
        node = self.zookeeper.get(ControllerEpochZNode.PATH)
        return 0 if node is None else ControllerEpochZNode.decode(node.data)

    def broker_epoch(self, broker_id: BrokerId) -> int | None:
        """Return the czxid of a broker's registration."""
        node = self.zookeeper.get(f"/brokers/ids/{broker_id}")
        return None if node is None else node.stat.czxid

    def leaderships(self, topic: str) -> dict[int, LeaderIsrAndControllerEpoch]:
        """Return what ZooKeeper says about every partition of a topic that has a leadership."""
        numbers = self.zookeeper.children(f"/brokers/topics/{topic}/partitions") or []
        paths = [TopicPartitionStateZNode.path(TopicPartition(topic, int(n))) for n in numbers]
        return {
            int(number): TopicPartitionStateZNode.decode(node.data, node.stat.version)
            for number, node in zip(numbers, self.zookeeper.get_many(paths), strict=True)
            if node is not None
        }

    def await_isrs(self, topic: str, brokers: set[BrokerId]) -> None:
        """Wait until the ISR of every partition of a topic is exactly these brokers."""

        def isrs() -> set[frozenset[BrokerId]]:
            states = self.leaderships(topic).values()
            return {frozenset(state.leader_and_isr.isr) for state in states}

        eventually(lambda: isrs() == {frozenset(brokers)}, f"{brokers} are the ISRs of {topic}")


class RunningCluster(ObservedCluster):
    """``run.py cluster`` as a child, and what an admin can see of it."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [
                *COMMAND,
                "cluster",
                "--data-dir",
                str(data_dir),
                "--base-port",
                "0",
                "--session-timeout-ms",
                str(SESSION_TIMEOUT_MS),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._context = new_context()
        self._restarted: dict[BrokerId, subprocess.Popen[str]] = {}
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready.startswith("ready: "), f"{ready!r} {self.process.communicate()[1]}"
        self.zookeeper = ZooKeeperClient(
            self.description["zookeeper"], 10_000, on_watch=lambda event: None
        )
        self.zookeeper.start(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything, however it stands."""
        self.zookeeper.close()
        self._context.destroy(linger=0)
        for process in self._restarted.values():
            process.kill()
            process.communicate()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()

    # --- processes ---

    @property
    def description(self) -> dict[str, Any]:
        """What ``cluster.json`` says."""
        text = (self.data_dir / "cluster.json").read_text(encoding="utf-8")
        description: dict[str, Any] = json.loads(text)
        return description

    @property
    def bootstrap(self) -> str:
        """Where Kafka's clients begin: ``host:port,…``."""
        return ",".join(f"{b['host']}:{b['port']}" for b in self.description["brokers"])

    def pid(self, broker_id: BrokerId) -> int:
        """Return the process id of a broker."""
        if broker_id in self._restarted:
            return self._restarted[broker_id].pid
        return int(next(b["pid"] for b in self.description["brokers"] if b["id"] == broker_id))

    def signal(self, broker_id: BrokerId, number: signal.Signals) -> None:
        """Send a signal to a broker."""
        os.kill(self.pid(broker_id), number)

    def await_end(self, broker_id: BrokerId, pid: int, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the process ``pid`` of a broker has ended."""
        restarted = self._restarted.get(broker_id)
        if restarted is not None and restarted.pid == pid:
            restarted.wait(timeout_s)  # ours: a zombie until then
        else:
            eventually(lambda: not _is_alive(pid), f"broker {broker_id} has ended", timeout_s)

    def start_broker(self, broker_id: BrokerId, *arguments: str) -> subprocess.Popen[str]:
        """Start a broker again that has died, as an operator would."""
        process = subprocess.Popen(
            self.broker_command(broker_id, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        predecessor, self._restarted[broker_id] = self._restarted.get(broker_id), process
        if predecessor is not None:
            predecessor.communicate()
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready: "), ready
        return process

    def broker_command(self, broker_id: BrokerId, *arguments: str) -> list[str]:
        """Return the command line that starts a broker on its own data."""
        return [
            *COMMAND,
            "broker",
            "--id",
            str(broker_id),
            "--zookeeper",
            self.description["zookeeper"],
            "--data-dir",
            str(self.data_dir / f"broker-{broker_id}"),
            "--session-timeout-ms",
            str(SESSION_TIMEOUT_MS),
            *arguments,
        ]

    def renew_session(self) -> None:
        """Look at ZooKeeper in a session of its present data."""
        self.zookeeper.close()
        self.zookeeper = ZooKeeperClient(
            self.description["zookeeper"], 10_000, on_watch=lambda event: None
        )
        self.zookeeper.start(10)

    # --- what there is to see ---

    def ask(self, broker_id: BrokerId, message: Any, timeout_s: float = 5.0) -> Any:
        """Ask an actor of a broker."""
        endpoint = self.control_endpoint(broker_id)
        with RemoteActorRef(self._context, endpoint, client_id="test") as actor:
            return actor.ask(message, timeout=timeout_s)

    def metadata(self, broker_id: BrokerId) -> DescribeMetadataResponse:
        """Return what a broker's metadata cache holds."""
        answer = self.ask(broker_id, DescribeMetadataRequest())
        assert isinstance(answer, DescribeMetadataResponse)
        return answer

    def metrics(self, broker_id: BrokerId) -> dict[str, float]:
        """Return what a broker of the supervisor tells Prometheus, by name and labels."""
        brokers = self.description["brokers"]
        port = next(broker["metrics_port"] for broker in brokers if broker["id"] == broker_id)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def create_topic(self, topic: str, partitions: int, brokers: int = 3) -> None:
        """Create a topic with a replica on every broker and wait until it is led."""
        self.create_topic_on(
            topic, [tuple((p + j) % brokers for j in range(brokers)) for p in range(partitions)]
        )

    def create_topic_on(self, topic: str, replicas: list[tuple[BrokerId, ...]]) -> None:
        """Create a topic with these replicas of each partition and wait until it is led."""
        assignments = {p: ReplicaAssignment(brokers) for p, brokers in enumerate(replicas)}
        data = TopicZNode.encode(encode_topic_id(os.urandom(16)), assignments)
        self.zookeeper.multi([Create(TopicZNode.path(topic), data)])
        eventually(lambda: len(self.leaderships(topic)) == len(replicas), f"{topic} is led")

    def status(self) -> dict[str, Any]:
        """Return what the command ``status`` says."""
        ended = subprocess.run(
            [*COMMAND, "status", "-o", "json", "--data-dir", self.data_dir],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        health: dict[str, Any] = json.loads(ended.stdout)
        return health

    def await_agreement(
        self, brokers: list[BrokerId], topic: str, controller_epoch: int | None = None
    ) -> dict[int, MetadataPartition]:
        """Wait until these brokers' caches equal ZooKeeper and each other; return the rows.

        Every partition is led by one of them, and its ISR is among them.
        """

        def agreed() -> dict[int, MetadataPartition] | None:
            stored = self.leaderships(topic)
            told = [self.metadata(b) for b in brokers]
            rows = [{p.partition: p for p in t.partitions if p.topic == topic} for t in told]
            expected = {
                n: (s.leader_and_isr.leader, s.leader_and_isr.leader_epoch, s.leader_and_isr.isr)
                for n, s in stored.items()
            }
            for seen in rows:
                if {n: (p.leader, p.leader_epoch, p.isr) for n, p in seen.items()} != expected:
                    return None
            if {t.controller_id for t in told} != {self.controller()}:
                return None
            if controller_epoch not in (None, told[0].controller_epoch):
                return None
            if not all(
                p.leader in brokers and set(p.isr) <= set(brokers) for p in rows[0].values()
            ):
                return None
            return rows[0]

        found = eventually(agreed, f"brokers {brokers} agree")
        assert found is not None
        return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def guardian_of(pid: int) -> int:
    """Return the process id of a broker's guardian; raises ``LookupError``."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"guardian" in words and str(pid).encode() in words:
            return int(path.name)
    raise LookupError(f"process {pid} has no guardian")
