"""The real control plane with stubs for its brokers: ZooKeeper, and candidates for the controller.

A candidate is a real broker process that hosts no partition. The stubs host all of them.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from bench.partition_znodes import replicas_of
from bench.pauses import WatchedProcess
from bench.processes import cpu_seconds, cpu_seconds_of_threads, resident_mb
from bench.stub_brokers import Look, StubBrokers
from bench.told import Told
from regent.cluster.embedded_zookeeper import HEAP_MB, EmbeddedZooKeeper
from regent.core.model import BrokerId
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import ControllerEpochZNode, ControllerZNode

TIMEOUT_S: Final = 1_200.0
SESSION_TIMEOUT_MS: Final = 30_000
FIRST_CANDIDATE: Final = 1_001
_BYTES_OF_A_PARTITION: Final = 1_800  # in the heap of ZooKeeper
_CONTROLLER_THREADS: Final = "Controller"  # their names begin so
_QUIET_S: Final = 1.0
_QUIET_S_OF_A_PARTITION: Final = 1e-5
_IDLE_S: Final = 0.5
_IDLE_SHARE: Final = 0.1  # of a processor
_POLL_S: Final = 0.002
_LOOK_S: Final = 0.1


class Candidate(WatchedProcess):
    """A broker process that may become the controller."""

    def __init__(self, broker_id: BrokerId, zookeeper: str, data_dir: Path) -> None:
        self.broker_id = broker_id
        self.journal = data_dir / "events.jsonl"
        options = {
            "id": broker_id,
            "zookeeper": zookeeper,
            "data-dir": data_dir,
            "port": 0,
            "control-port": 0,
            "replication-port": 0,
            "metrics-port": 0,
            "session-timeout-ms": SESSION_TIMEOUT_MS,
        }
        super().__init__([part for k, v in options.items() for part in (f"--{k}", str(v))])

    def await_ready(self) -> None:
        """Wait until it is registered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready: "), f"a candidate did not start: {line}"

    def handled_s(self, controller_epoch: int) -> float:
        """Return how long it handled its election, by its journal."""
        for line in self.journal.read_text(encoding="utf-8").splitlines():
            event: dict[str, Any] = json.loads(line)
            if event.get("elected") == controller_epoch:
                return round(float(event["handling_ms"]) / 1000, 3)
        raise AssertionError(f"the journal has no election {controller_epoch}")


class ControlPlane:
    """All processes of a measurement; they end with the ``with`` block."""

    def __init__(self, partitions: int, brokers: int) -> None:
        self.broker_ids: Sequence[BrokerId] = range(1, brokers + 1)
        self._undo = ExitStack()
        self._folder = Path(self._undo.enter_context(tempfile.TemporaryDirectory()))
        heap_mb = HEAP_MB + 2 * partitions * _BYTES_OF_A_PARTITION // 1_000_000
        self.server = EmbeddedZooKeeper(self._folder / "zookeeper", heap_mb=heap_mb)
        self._quiet_s = _QUIET_S + partitions * _QUIET_S_OF_A_PARTITION
        self._candidates = 0
        self.candidates: list[Candidate] = []

    def __enter__(self) -> Self:
        try:
            self.server.start()
            self._undo.callback(self.server.stop)
            self.client = ZooKeeperClient(
                self.server.address, SESSION_TIMEOUT_MS, on_watch=lambda _: None
            )
            self.client.start(30.0)
            self._undo.callback(self.client.close)
            ZkControllerStore(self.client).create_persistent_paths()
            self.stubs = StubBrokers(self.server.address, self.broker_ids)
            self._undo.callback(self.stubs.close)
            self.idle_process = WatchedProcess([])
            self._undo.callback(self.idle_process.close)
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def start_candidate(self) -> Candidate:
        """Start a process that may become the controller; it is not ready yet."""
        broker_id = FIRST_CANDIDATE + self._candidates
        self._candidates += 1
        candidate = Candidate(broker_id, self.server.address, self._folder / f"broker-{broker_id}")
        self._undo.callback(candidate.close)
        self.candidates.append(candidate)
        return candidate

    def kill(self, candidate: Candidate) -> float:
        """``kill -9`` a candidate; return when."""
        self.candidates.remove(candidate)
        killed = time.monotonic()
        candidate.process.kill()
        return killed

    def controller_epoch(self) -> int:
        """Return the controller epoch; 0 before the first election."""
        node = self.client.get(ControllerEpochZNode.PATH)
        return 0 if node is None else ControllerEpochZNode.decode(node.data)

    def controller(self) -> Candidate:
        """Return the candidate that is the controller."""
        node = self.client.get(ControllerZNode.PATH)
        assert node is not None, "there is no controller"
        elected = ControllerZNode.decode(node.data)
        return next(c for c in self.candidates if c.broker_id == elected)

    def await_election(self, after_epoch: int) -> tuple[int, float]:
        """Wait for an election after this epoch; return its epoch, and when it was."""
        deadline = time.monotonic() + TIMEOUT_S
        while (epoch := self.controller_epoch()) <= after_epoch:
            assert time.monotonic() < deadline, "no election"
            time.sleep(_POLL_S)
        return epoch, time.monotonic()

    def await_told(self, look_for: Callable[[BrokerId], Look]) -> Mapping[BrokerId, Told]:
        """Wait until each stub has been told what is looked for.

        Nothing is looked at while requests come: that would take time from their answers.
        """
        deadline = time.monotonic() + TIMEOUT_S
        seen, told = 0, {}
        while True:
            time.sleep(_LOOK_S)
            quiet = self.stubs.quiet()
            if quiet.seconds > self._quiet_s and quiet.requests > seen:
                seen = quiet.requests
                told = self.stubs.told({b: look_for(b) for b in self.broker_ids})
                if all(each.at is not None for each in told.values()):
                    return told
            assert time.monotonic() < deadline, f"told after {TIMEOUT_S} s: {told}"

    def await_idle(self) -> None:
        """Wait until the candidates and ZooKeeper do next to nothing."""
        pids = [self.server.pid, *(candidate.process.pid for candidate in self.candidates)]
        before = -TIMEOUT_S
        while (now := sum(map(cpu_seconds, pids))) - before > _IDLE_S * _IDLE_SHARE * len(pids):
            before = now
            time.sleep(_IDLE_S)


def replicas_by_broker(
    sizes: Mapping[str, int], brokers: Sequence[BrokerId], leader: BrokerId | None = None
) -> Mapping[BrokerId, int]:
    """Return how many replicas each broker has; with ``leader``: of the partitions that it leads.

    They are counted as ``replicas_of`` places them.
    """
    replicas: Counter[BrokerId] = Counter()
    for size, topics in Counter(sizes.values()).items():
        for number in range(size):
            placed = replicas_of(number, brokers)
            if leader in (None, placed[0]):
                replicas.update(dict.fromkeys(placed, topics))
    return replicas


class ControllerUsage:
    """What a controller and ZooKeeper use, and how long the controller pauses, from now on."""

    def __init__(self, plane: ControlPlane, controller: Candidate) -> None:
        self._plane = plane
        self._controller = controller
        self._before = self._now()
        controller.take_pauses()
        plane.idle_process.take_pauses()

    def result(self) -> dict[str, Any]:
        """Return what they used since the start."""
        used = {name: round(value - self._before[name], 2) for name, value in self._now().items()}
        return {
            **used,
            "rss_mb": resident_mb(self._controller.process.pid),
            "pauses": self._controller.take_pauses(),
            "machine_pauses": self._plane.idle_process.take_pauses(),
        }

    def _now(self) -> dict[str, float]:
        pid = self._controller.process.pid
        return {
            "cpu_s": cpu_seconds(pid),
            "controller_cpu_s": cpu_seconds_of_threads(pid, _CONTROLLER_THREADS),
            "zookeeper_cpu_s": cpu_seconds(self._plane.server.pid),
        }
