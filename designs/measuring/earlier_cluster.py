"""v1 and v2 as clusters to measure: their broker processes, and what they say of their replicas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from regent.cluster.child_process import DeathPipe
from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId, TopicPartition
from regent.designs.mail import DescribeReplicas, Description, Peer, SilentPeerError
from regent.designs.measuring.measured_cluster import (
    SESSION_TIMEOUT_MS,
    TOPIC,
    LeaderTimes,
    MeasuredCluster,
    MeasuringError,
)
from regent.designs.measuring.zookeeper_counts import FOUR_LETTER_WORDS, ZooKeeperCounts
from regent.designs.znodes import (
    BROKER_IDS,
    PARTITIONS_ADD,
    StoredLeadership,
    creations,
    decode_ids,
    encode_ids,
    isr_path,
    leader_and_isr_path,
    partition_name,
    topic_path,
)
from regent.testing.waits import await_end, next_line
from regent.zk.client.operations import Create, Operation, Znode
from regent.zk.client.zookeeper_client import ZooKeeperClient

KEEP_IN_SYNC_MS: Final = 1_000
"""When a replica without progress leaves the ISR: sooner than a session ends, not Kafka's 30 s."""

_PARTITIONS_AT_ONCE: Final = 500
_ASK_TIMEOUT_S: Final = 60.0


class EarlierCluster(MeasuredCluster):
    """Brokers of one design; ``design`` is a name of ``design_process.DESIGNS``."""

    def __init__(
        self, design: str, folder: Path, brokers: int, session_timeout_ms: int = SESSION_TIMEOUT_MS
    ) -> None:
        self.zookeeper = EmbeddedZooKeeper(
            folder / "zookeeper", four_letter_words=FOUR_LETTER_WORDS
        )
        self.brokers = range(brokers)
        self.design = design
        self.peers: dict[BrokerId, Peer] = {}
        self._session_timeout_ms = session_timeout_ms
        self._death_pipe = DeathPipe()
        self._processes: dict[BrokerId, subprocess.Popen[str]] = {}
        try:
            self.zookeeper.start()
            for broker_id in self.brokers:
                self._processes[broker_id] = self._launch(broker_id, folder)
            for broker_id, process in self._processes.items():
                ready = next_line(process, f"broker {broker_id}")
                if not ready:
                    log = (folder / f"broker-{broker_id}.log").read_text().splitlines()
                    raise MeasuringError(f"broker {broker_id} does not start: {log[-1:]}")
                self.peers[broker_id] = Peer(ready.removeprefix("ready: ").strip())
        except BaseException:
            self.close()
            raise

    def _create(self, session: ZooKeeperClient) -> None:
        """Write the partitions as an administrator did it in v1; ask brokers of v2 for them."""
        everybody = len(self.brokers)
        self._await(
            lambda: len(session.children(BROKER_IDS) or ()) == everybody, "no broker registers"
        )
        if self.design != "v2":
            session.multi([Create(topic_path(TOPIC))])
        for first in range(0, len(self.replicas), _PARTITIONS_AT_ONCE):
            writes: list[Operation] = []
            for number in range(len(self.replicas))[first : first + _PARTITIONS_AT_ONCE]:
                topic_partition, replicas = TopicPartition(TOPIC, number), self.replicas[number]
                if self.design == "v2":
                    path = f"{PARTITIONS_ADD}/{partition_name(topic_partition)}"
                    writes.append(Create(path, encode_ids(replicas)))
                else:
                    writes += creations(self.design, topic_partition, replicas)
            session.multi(writes)
            self._await(lambda: not session.children(PARTITIONS_ADD), "partitions are not taken up")

    def _isr_path(self, topic_partition: TopicPartition) -> str:
        return (leader_and_isr_path if self.design == "v2" else isr_path)(topic_partition)

    def _isr_in(self, znode: Znode) -> Collection[BrokerId]:
        if self.design == "v2":
            return StoredLeadership.decode(znode.data).isr
        return decode_ids(znode.data)

    def leaders(self) -> Mapping[int, BrokerId]:
        """See ``MeasuredCluster.leaders``: as the brokers believe."""
        return {
            partition: broker_id
            for broker_id, description in self._describe()
            for partition in description.leads
        }

    def pid(self, broker_id: BrokerId) -> int:
        return self._processes[broker_id].pid

    def await_leaders(
        self, dead: Collection[BrokerId], led: int, before: ZooKeeperCounts, killed: float
    ) -> LeaderTimes:
        """See ``MeasuredCluster.await_leaders``; brokers note when their replicas began."""
        for broker_id in dead:
            self.peers.pop(broker_id).close()
        self._await(lambda: self._are_led(dead), f"not every partition is led without {dead}")
        found = [description for _, description in self._describe()]
        return LeaderTimes(
            max(0, *(description.led_ms - killed * 1000 for description in found)),
            max(0, *(description.changed_ms - killed * 1000 for description in found)),
        )

    def _are_led(self, dead: Collection[BrokerId]) -> bool:
        """Whether every live replica knows a live leader; others hear of none."""
        found = [description for _, description in self._describe(dead)]
        expected = sum(b in self.peers for replicas in self.replicas for b in replicas)
        return sum(description.replicas for description in found) == expected and not any(
            description.without_leader for description in found
        )

    def counts(self, broker_ids: Collection[BrokerId]) -> Mapping[str, int]:
        """See ``MeasuredCluster.counts``: the brokers send each other nothing but fetches."""
        found = dict(self._describe())
        called = sum(found[broker_id].listeners_called for broker_id in broker_ids)
        return {"listeners called": called, "requests between brokers": 0}

    def describe(self, broker_id: BrokerId, dead: Collection[BrokerId] = ()) -> Description:
        """Return what the replicas of a broker believe."""
        question = DescribeReplicas(tuple(dead))
        try:
            return Description(*self.peers[broker_id].ask(question, _ASK_TIMEOUT_S))
        except SilentPeerError as error:
            raise MeasuringError(f"broker {broker_id}: {error}") from None

    def _describe(self, dead: Collection[BrokerId] = ()) -> Iterator[tuple[BrokerId, Description]]:
        for broker_id in self.peers:
            yield broker_id, self.describe(broker_id, dead)

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        for broker_id, process in self._processes.items():
            process.kill()
            await_end(process, f"broker {broker_id}")
        self._death_pipe.close()
        self.zookeeper.stop()

    def _launch(self, broker_id: BrokerId, folder: Path) -> subprocess.Popen[str]:
        pipe = self._death_pipe.read_fd
        options = (self._session_timeout_ms, KEEP_IN_SYNC_MS, pipe)
        command = [
            *(sys.executable, "-P", "-m", "regent.designs.design_process", self.design),
            *map(str, (broker_id, self.zookeeper.address, *options)),
        ]
        with (folder / f"broker-{broker_id}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=(pipe,),
                process_group=0,  # Ctrl-C is for this process
            )
