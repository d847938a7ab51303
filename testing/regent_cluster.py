"""A cluster of real processes on this machine, and faults in one line each.

``cluster`` starts one for a ``with`` block; ``RegentCluster`` uses a folder of the caller.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any, Final, Self

from regent.cluster.child_process import DeathPipe
from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.cluster.supervisor_socket import start_brokers
from regent.config.cluster_location import KEYS_DIR
from regent.config.command_line import COMMAND
from regent.core.admin.topic_settings import topic_config_problem
from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from regent.testing.cluster_observer import ClusterObserver
from regent.testing.janitor import Janitor
from regent.testing.network import Network
from regent.testing.network_proxy import ZOOKEEPER, Member
from regent.testing.waits import (
    TIMEOUT_S,
    await_end,
    eventually,
    next_line,
    pause_process,
    scaled,
    timeout_factor,
)
from regent.transport.control.key_files import KeysDirectory
from regent.zk.client.connection import ConnectionState
from regent.zk.client.login import SECRET_FILE, log_in_of
from regent.zk.client.operations import Create, Delete, Operation
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.codecs.topic_znodes import random_uuid
from regent.zk.znodes import ConfigEntityZNode, ControllerZNode, DeleteTopicsTopicZNode, TopicZNode

SESSION_TIMEOUT_MS: Final = 2_000
READER_TIMEOUT_MS: Final = 10_000
MAX_SESSION_TIMEOUT_MS: Final = 60_000  # of the embedded server
START_TIMEOUT_S: Final = 60.0
CLUSTER_START_TIMEOUT_S: Final = 180.0
_NUM_THREADS: Final = 17  # in /proc/PID/stat, after the name of the program
_NO_REBALANCE_DELAY: Final = "group_initial_rebalance_delay_ms=0"
_INTERNAL_TOPICS_TIMEOUT_S: Final = 20.0
_MAX_MOVES: Final = 20  # of the controller: the same broker may be elected again


class RegentCluster(ClusterObserver):
    """``regent cluster`` as a child process.

    ``options`` are those of the command. With ``zookeeper`` the cluster uses that server, which can
    be stopped; it is started here, and ended with the cluster. With ``network`` as well, links can
    be cut. Methods that cause a fault wait for its effect, and raise ``AssertionError`` without it.
    """

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        zookeeper: EmbeddedZooKeeper | None = None,
        network: Network | None = None,
    ) -> None:
        self.data_dir = data_dir
        self._server = zookeeper
        if zookeeper is not None:
            zookeeper.start(scaled(START_TIMEOUT_S))
            given = ("--zookeeper", zookeeper.address)
            options = (*options, *(network.open(zookeeper.address) if network else given))
        self._network = network
        self._death_pipe = DeathPipe()
        self.process = self._start(
            [*COMMAND, "cluster", "--data-dir", str(data_dir), "--base-port", "0", "--no-console"],
            *("--session-timeout-ms", str(_session_timeout_ms(SESSION_TIMEOUT_MS))),
            *("--connection-timeout-ms", str(int(scaled(START_TIMEOUT_S) * 1000)), *options),
        )
        self._extra: dict[BrokerId, subprocess.Popen[str]] = {}
        self._paused: set[BrokerId] = set()
        self._session: ZooKeeperClient | None = None
        self._awaits_internal_topics = "--no-internal-topics" not in options
        try:
            _await_ready(self.process, "the cluster", CLUSTER_START_TIMEOUT_S)
            self.use_keys(KeysDirectory(data_dir / KEYS_DIR).operator())
            self.renew_session()
        except BaseException:
            self.close_context()
            self._kill(self.process, "the cluster")
            self._death_pipe.close()
            if zookeeper is not None:
                zookeeper.stop()
            raise
        brokers = self.description["brokers"]
        self._ports: dict[BrokerId, int] = {broker["id"]: broker["port"] for broker in brokers}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, in any state."""
        for broker_id in list(self._paused):
            self._continue(broker_id)
        if self._session is not None:
            self._session.close()
        self.close_context()
        for broker_id, process in self._extra.items():
            self._kill(process, f"broker {broker_id}")
        self.process.send_signal(signal.SIGINT)
        with suppress(AssertionError):
            await_end(self.process, "the cluster", START_TIMEOUT_S)
        self._kill(self.process, "the cluster")
        self._death_pipe.close()
        if self._server is not None:
            self._server.stop()

    def _start(self, command: Sequence[str], *options: str) -> subprocess.Popen[str]:
        """Start a command that ends when this process ends, also when it is stopped by SIGSTOP.

        The kernel continues and ends a stopped process in a group that becomes an orphan.
        """
        pipe = self._death_pipe.read_fd
        return subprocess.Popen(
            [*command, *options, "--death-pipe-fd", str(pipe)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(pipe,),
            process_group=0,  # Ctrl-C is for this process
        )

    def _kill(self, process: subprocess.Popen[str], what: str) -> None:
        process.kill()
        await_end(process, what)

    # --- state ---

    @property
    def description(self) -> dict[str, Any]:
        """The content of ``cluster.json``."""
        text = (self.data_dir / "cluster.json").read_text(encoding="utf-8")
        description: dict[str, Any] = json.loads(text)
        return description

    @property
    def brokers(self) -> list[BrokerId]:
        """The ids of the brokers, of stopped ones too."""
        return sorted(self._ports)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,…`` for Kafka clients. A broker that is restarted keeps its port."""
        return ",".join(map(self.bootstrap_server, self._ports))

    def bootstrap_server(self, broker_id: BrokerId) -> str:
        """``host:port`` of a broker for Kafka clients."""
        return f"127.0.0.1:{self._ports[broker_id]}"

    @property
    def zookeeper(self) -> ZooKeeperClient:
        """The session that reads ZooKeeper. One that was lost is replaced.

        Raises ``RegentError`` while no server answers.
        """
        if self._session is None or self._session.state is ConnectionState.LOST:
            self.renew_session()
        assert self._session is not None
        return self._session

    def renew_session(self) -> None:
        """Read ZooKeeper in a new session from now on; raises ``RegentError``."""
        if self._session is not None:
            self._session.close()
        timeout_ms = _session_timeout_ms(READER_TIMEOUT_MS)
        address = self.description["zookeeper"]
        log_in_of(self.data_dir, address)
        client = ZooKeeperClient(address, timeout_ms, on_watch=lambda _: None)
        try:
            client.start(timeout_ms / 1000)
        except BaseException:
            client.abandon()
            raise
        self._session = client

    def metrics(self, broker_id: BrokerId) -> dict[str, float]:
        """Return the Prometheus metrics of a broker, by name and labels."""
        brokers = self.description["brokers"]
        port = next(broker["metrics_port"] for broker in brokers if broker["id"] == broker_id)
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=scaled(10)) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def status(self) -> dict[str, Any]:
        """Return what ``regent status -o json`` prints."""
        ended = subprocess.run(
            [*COMMAND, "status", "-o", "json", "--data-dir", self.data_dir],
            capture_output=True,
            text=True,
            timeout=scaled(START_TIMEOUT_S),
            check=False,
        )
        health: dict[str, Any] = json.loads(ended.stdout)
        return health

    # --- topics ---

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until every partition has a leader.

        The replicas are placed in a ring over all brokers; without ``replication_factor`` on every
        one. Raises ``ValueError`` for numbers and settings that the cluster would refuse.
        """
        count = len(self.brokers)
        factor = count if replication_factor is None else replication_factor
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, not {partitions}")
        if not 1 <= factor <= count:
            raise ValueError(f"replication_factor must be 1 to {count}, not {factor}")
        ring = [
            tuple(self.brokers[(p + j) % count] for j in range(factor)) for p in range(partitions)
        ]
        self.create_topic_on(topic, ring, config)

    def create_topic_on(
        self,
        topic: str,
        replicas: Sequence[tuple[BrokerId, ...]],
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic with these replicas of each partition and wait for the leaders.

        Raises ``ValueError`` for settings that the cluster would refuse.
        """
        for name, value in (config or {}).items():
            if (problem := topic_config_problem(name, value)) is not None:
                raise ValueError(f"{name} {problem}")
        assignments = {p: ReplicaAssignment(brokers) for p, brokers in enumerate(replicas)}
        writes: list[Operation] = []
        if config:
            path = ConfigEntityZNode.path("topics", topic)
            writes.append(Create(path, ConfigEntityZNode.encode(config)))
        data = TopicZNode.encode(random_uuid(), assignments)
        self.zookeeper.multi([*writes, Create(TopicZNode.path(topic), data)])
        eventually(lambda: len(self.partition_states(topic)) == len(replicas), f"{topic} is led")

    def delete_topic(self, topic: str) -> None:
        """Ask for the deletion of a topic, without waiting for it."""
        self.zookeeper.multi([Create(DeleteTopicsTopicZNode.path(topic), b"")])

    # --- processes ---

    def pid(self, broker_id: BrokerId) -> int:
        """Return the process id of a broker; of its last process if it crashed.

        Raises ``ValueError`` if there is no such broker, or if it was shut down.
        """
        pid = self._pid(broker_id)
        if pid is None and broker_id not in self._ports:
            raise ValueError(f"there is no broker {broker_id}: name one of {self.brokers}")
        if pid is None:
            raise _stopped(broker_id)
        return pid

    def _pid(self, broker_id: BrokerId) -> int | None:
        if broker_id in self._extra:
            return self._extra[broker_id].pid
        brokers = self.description["brokers"]
        return next((int(broker["pid"]) for broker in brokers if broker["id"] == broker_id), None)

    def signal(self, broker_id: BrokerId, number: Signals) -> None:
        """Send a signal to a broker; after SIGSTOP return when all of its threads have stopped.

        Raises ``ValueError`` if it does not run.
        """
        pid = self.pid(broker_id)
        if not _is_alive(pid):
            raise _stopped(broker_id)
        if number is signal.SIGSTOP:
            pause_process(pid)
        else:
            os.kill(pid, number)

    def await_end(self, broker_id: BrokerId, pid: int, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the process ``pid`` of a broker has ended."""
        extra = self._extra.get(broker_id)
        if extra is not None and extra.pid == pid:
            await_end(extra, f"broker {broker_id}", timeout_s)  # a child of this process
        else:
            eventually(lambda: not _is_alive(pid), f"broker {broker_id} has ended", timeout_s)

    def start_broker(self, broker_id: BrokerId, *options: str) -> subprocess.Popen[str]:
        """Start a broker that does not run, as a child of this process, with extra options.

        Raises ``ValueError`` if it runs.
        """
        pid = self._pid(broker_id)
        if pid is not None and _is_alive(pid):
            raise ValueError(f"broker {broker_id} runs already, as process {pid}")
        predecessor = self._extra.get(broker_id)
        if predecessor is not None:
            await_end(predecessor, f"the former broker {broker_id}")
        process = self._start(self.broker_command(broker_id, *options))
        self._extra[broker_id] = process
        _await_ready(process, f"broker {broker_id}", START_TIMEOUT_S)
        return process

    def broker_command(self, broker_id: BrokerId, *options: str) -> list[str]:
        """Return the command line that starts a broker on its own data and on free ports."""
        ports = [f"--{name}port=0" for name in ("", "control-", "replication-", "metrics-")]
        login = ("--secret-file", str(f)) if (f := self.data_dir / SECRET_FILE).exists() else ()
        return [
            *(*COMMAND, "broker", "--id", str(broker_id)),
            *("--zookeeper", self.description["zookeeper"]),
            *("--data-dir", str(self.data_dir / f"broker-{broker_id}")),
            *("--session-timeout-ms", str(_session_timeout_ms(SESSION_TIMEOUT_MS))),
            *(*ports, *login, *options),
        ]

    # --- faults ---

    def kill(self, *brokers: BrokerId) -> None:
        """End brokers by ``kill -9``, all at once; wait until their registrations are gone."""
        self._end(signal.SIGKILL, brokers)

    def shut_down(self, broker_id: BrokerId) -> None:
        """Shut a broker down by SIGTERM; wait until its registration is gone."""
        self._end(signal.SIGTERM, [broker_id])

    def restart(self, broker_id: BrokerId) -> None:
        """Shut a broker down if it runs, and start it; wait until it serves."""
        if self._runs(broker_id):
            self.shut_down(broker_id)
        start_brokers(self.data_dir, (broker_id,), scaled(START_TIMEOUT_S))
        eventually(
            lambda: self.broker_epoch(broker_id) is not None, f"broker {broker_id} is registered"
        )

    def pause(self, broker_id: BrokerId) -> None:
        """Stop a broker by SIGSTOP; wait until its ZooKeeper session has ended."""
        self._await_internal_topics()
        self.signal(broker_id, signal.SIGSTOP)
        self._paused.add(broker_id)
        eventually(
            lambda: self.broker_epoch(broker_id) is None,
            f"the session of broker {broker_id} has ended",
        )

    def resume(self, broker_id: BrokerId) -> None:
        """Continue a paused broker by SIGCONT; wait until it is registered again."""
        self._continue(broker_id)
        eventually(
            lambda: self.broker_epoch(broker_id) is not None, f"broker {broker_id} is registered"
        )

    def kill_leader_of(self, topic: str, partition: int = 0) -> BrokerId:
        """``kill -9`` the leader of a partition, wait for another one, return the killed broker."""
        leader = self.await_leader(topic, partition)
        self.kill(leader)
        self.await_leader(topic, partition, other_than=leader)
        return leader

    def move_controller(self) -> BrokerId:
        """Delete ``/controller`` until another broker is the active controller; return it."""
        former = self.await_controller()
        for _ in range(_MAX_MOVES):
            epoch = self.controller_epoch()
            node = self.zookeeper.get(ControllerZNode.PATH)
            if node is not None:
                self.zookeeper.multi([Delete(ControllerZNode.PATH, node.stat.version)])
            eventually(partial(self._is_elected_after, epoch), "another election")
            if self.await_controller() != former:
                break
        return self.await_controller()

    def stop_zookeeper(self) -> None:
        """End the ZooKeeper server. Leaders continue to serve until they need the controller."""
        self._await_internal_topics()
        self._own_server().stop()

    def start_zookeeper(self) -> None:
        """Start the ZooKeeper server on its data; wait until the running brokers are registered."""
        self._own_server().start(scaled(START_TIMEOUT_S))
        running = [broker_id for broker_id in self.brokers if self._runs(broker_id)]
        eventually(
            lambda: all(self.broker_epoch(broker_id) is not None for broker_id in running),
            "all running brokers are registered",
        )

    def fill_disk(self, broker_id: BrokerId) -> None:
        """Make every write of a broker to a file fail; wait until it leads nothing.

        The broker's limit on the size of files (RLIMIT_FSIZE) becomes 0: a write fails with EFBIG
        as it would with ENOSPC on a full disk. This uses no space and needs no privilege. A broker
        whose only log directory fails ends. ``restart`` gives it room again.
        """
        self._await_internal_topics()
        _limit_files(self.pid(broker_id), 0)
        eventually(lambda: not self._leads(broker_id), f"broker {broker_id} leads nothing")

    def cut(self, broker_id: BrokerId, from_: Member | None = None) -> None:
        """Cut a broker off from another one, or from ``"zookeeper"``; None: from all of them.

        No byte passes in either direction any more, as if packets were lost: connections stay open
        and continue after ``reconnect``. Clients reach the broker as before. A cut stays when the
        broker is restarted. After a cut from ZooKeeper, wait until the broker's session has ended.
        Raises ``ValueError`` for a member that does not exist.
        """
        self._await_internal_topics()
        network = self._own_network()
        links = network.links(broker_id, from_)
        network.cut(links)
        if (broker_id, ZOOKEEPER) in links:
            eventually(
                lambda: self.broker_epoch(broker_id) is None,
                f"the session of broker {broker_id} has ended",
            )

    def reconnect(self, broker_id: BrokerId, to: Member | None = None) -> None:
        """Undo ``cut``; if ZooKeeper was cut off, wait until a running broker is registered."""
        network = self._own_network()
        links = network.links(broker_id, to)
        network.restore(links)
        if (broker_id, ZOOKEEPER) in links and self._runs(broker_id):
            eventually(
                lambda: self.broker_epoch(broker_id) is not None,
                f"broker {broker_id} is registered",
            )

    def heal(self) -> None:
        """Undo every fault: reconnect, resume and restart; wait until all brokers are ready."""
        if self._network is not None:
            self._network.restore_all()
        for broker_id in list(self._paused):
            self._continue(broker_id)
        if self._server is not None and self._server.poll() is not None:
            self._server.start(scaled(START_TIMEOUT_S))
        for broker_id in self.brokers:
            if not self._runs(broker_id) or _has_no_room(self.pid(broker_id)):
                self.restart(broker_id)
        self.await_ready()

    def await_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until there is a controller and every broker's metadata has all brokers."""

        def is_ready() -> bool:
            everyone = set(self.brokers)
            return self.controller() in everyone and all(
                {broker.broker_id for broker in self.metadata(broker_id).brokers} == everyone
                for broker_id in everyone
            )

        eventually(is_ready, "all brokers are ready", timeout_s)

    def _is_elected_after(self, epoch: int) -> bool:
        return self.controller_epoch() > epoch

    def _await_internal_topics(self) -> None:
        """Wait until groups and transactions have coordinators, which the cluster sees to.

        They would not get one after the first fault. A cluster may be configured to have none.
        """
        if not self._awaits_internal_topics:
            return
        self._awaits_internal_topics = False
        with suppress(AssertionError):  # the fault begins all the same
            for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
                self.await_leader(topic, timeout_s=_INTERNAL_TOPICS_TIMEOUT_S)

    def _end(self, number: Signals, brokers: Sequence[BrokerId]) -> None:
        self._await_internal_topics()
        pids = {broker_id: self.pid(broker_id) for broker_id in brokers}
        for broker_id in brokers:
            self.signal(broker_id, number)
        for broker_id, pid in pids.items():
            self.await_end(broker_id, pid)
        if self._server is not None and self._server.poll() is not None:
            return
        eventually(
            lambda: all(self.broker_epoch(broker_id) is None for broker_id in brokers),
            f"the registrations of {sorted(brokers)} are gone",
        )

    def _continue(self, broker_id: BrokerId) -> None:
        self._paused.discard(broker_id)
        with suppress(ProcessLookupError):
            os.kill(self.pid(broker_id), signal.SIGCONT)

    def _runs(self, broker_id: BrokerId) -> bool:
        pid = self._pid(broker_id)
        return broker_id not in self._paused and pid is not None and _is_alive(pid)

    def _leads(self, broker_id: BrokerId) -> bool:
        topics = self.zookeeper.children("/brokers/topics") or []
        states = (state for topic in topics for state in self.partition_states(topic).values())
        return any(state.leader_and_isr.leader == broker_id for state in states)

    def _own_server(self) -> EmbeddedZooKeeper:
        assert self._server is not None, "this cluster was started without a server to stop"
        return self._server

    def _own_network(self) -> Network:
        assert self._network is not None, "this cluster was started without a network to cut"
        return self._network


@contextmanager
def cluster(
    brokers: int = 3, *, config: Path | None = None, placement_service: bool = False
) -> Iterator[RegentCluster]:
    """Start a cluster in a temporary folder for the block, on free ports.

    ``config`` is a TOML file with settings of brokers. Without it, groups of consumers do not wait
    for more members (group.initial.rebalance.delay.ms is 0). Nothing is left when the block ends,
    even if this process is killed in it. Call it in the main thread.
    """
    options = ["--brokers", str(brokers)]
    for broker_id in range(brokers if config is None else 0):
        options += ["--broker-setting", f"{broker_id}:{_NO_REBALANCE_DELAY}"]
    options += [] if config is None else ["--config", str(config)]
    options += [] if placement_service else ["--no-placement-service"]
    folder = Path(tempfile.mkdtemp(prefix="regent-"))
    janitor = Janitor(folder)
    try:
        server = EmbeddedZooKeeper(folder / "zookeeper")
        with (
            closing(Network(brokers)) as network,
            RegentCluster(folder / "data", *options, zookeeper=server, network=network) as running,
        ):
            yield running
    finally:
        janitor.clean_up()


def unique_topic(name: str) -> str:
    """Return a valid topic name that begins with ``name`` and is used once."""
    valid = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    return f"{valid[:200].strip('.')}-{uuid.uuid4().hex[:8]}"


def _session_timeout_ms(milliseconds: int) -> int:
    return min(int(milliseconds * timeout_factor()), MAX_SESSION_TIMEOUT_MS)


def _await_ready(process: subprocess.Popen[str], what: str, timeout_s: float) -> None:
    try:
        line = next_line(process, f"{what} is ready", timeout_s)
    except AssertionError as error:
        process.kill()
        raise AssertionError(f"{error}: {await_end(process, what)}") from None
    if not line.startswith("ready: "):
        raise AssertionError(f"{what} is not ready: {line}{await_end(process, what)}")


def _stopped(broker_id: BrokerId) -> ValueError:
    return ValueError(f"broker {broker_id} does not run: call restart({broker_id}) first")


def _is_alive(pid: int) -> bool:
    """Whether a process, or a thread of it, still runs: then its parent cannot reap it yet.

    The main thread of a process that ends may be a zombie before the other threads have ended.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return False
    fields = stat.rpartition(")")[2].split()
    return fields[0] != "Z" or int(fields[_NUM_THREADS]) > 1


def _limit_files(pid: int, size: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def _has_no_room(pid: int) -> bool:
    return resource.prlimit(pid, resource.RLIMIT_FSIZE)[0] == 0
