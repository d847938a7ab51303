"""Our own design, the controller, as a cluster to measure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from regent.config.addresses import tcp_endpoint
from regent.core.model import NO_LEADER, BrokerId, ReplicaAssignment
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from regent.designs.measuring.measured_cluster import (
    Believers,
    LeaderTimes,
    MeasuringError,
    StateChangeCost,
)
from regent.designs.measuring.transaction_log import Transaction, ZooKeeperLog
from regent.testing.regent_cluster import RegentCluster
from regent.transport.client import RequestError
from regent.transport.remote_ref import RemoteActorRef, ask
from regent.zk.client.operations import Create
from regent.zk.codecs.znodes import TopicPartitionStateZNode, TopicZNode, encode_topic_id
from regent.zk.embedded.embedded_zookeeper import EmbeddedZooKeeper

_TOPIC: Final = "measured"
_REPLICATION_FACTOR: Final = 3
_ASK_TIMEOUT_S: Final = 60.0
_TIMEOUT_S: Final = 600.0
_LOG_POLL_S: Final = 0.005
_METRIC: Final = "regent_control_requests_total"
_QUESTIONS: Final = ("DescribeMetadata", "DescribeController")  # of commands and of this module


class V3Cluster:
    """Real brokers, and what they tell at their control ports and in their metrics.

    A leader is written to ZooKeeper by the controller, in the ``state`` of the partition: when, is
    in ZooKeeper's transaction log. Leaderships do not return to the preferred replicas by
    themselves, because that would be counted, too.
    """

    period_s = 10.0  # broker.zookeeper_checks

    def __init__(self, folder: Path, brokers: int) -> None:
        self.zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
        settings = (
            f"{broker_id}:auto_leader_rebalance_enable=false" for broker_id in range(brokers)
        )
        self._regent = RegentCluster(
            folder / "data",
            *("--brokers", str(brokers), "--no-placement-service"),
            *(option for setting in settings for option in ("--broker-setting", setting)),
            zookeeper=self.zookeeper,
        )
        self.brokers = self._regent.brokers
        self._actors = {
            entry["id"]: RemoteActorRef(
                self._regent.context,
                tcp_endpoint(entry["host"], entry["control_port"]),
                client_id="designs",
            )
            for entry in self._regent.description["brokers"]
        }
        self._replicas: list[tuple[BrokerId, ...]] = []

    def create_partitions(self, count: int) -> None:
        """See ``MeasuredCluster``. The controller does not lead partition 0 if there are others."""
        self._regent.await_ready()
        controller = self._regent.await_controller()
        ring = sorted(
            self.brokers, key=lambda broker_id: (broker_id - controller - 1) % len(self.brokers)
        )
        factor = min(_REPLICATION_FACTOR, len(ring))
        self._replicas = [
            tuple(ring[(number + k) % len(ring)] for k in range(factor)) for number in range(count)
        ]
        assignments = {number: ReplicaAssignment(r) for number, r in enumerate(self._replicas)}
        data = TopicZNode.encode(encode_topic_id(os.urandom(16)), assignments)
        self._regent.zookeeper.multi([Create(TopicZNode.path(_TOPIC), data)])
        self._await_metadata(self.brokers, lambda rows: self._are_led(rows, ()))
        self._regent.zookeeper.close()  # its pings would be counted

    def controller(self) -> BrokerId | None:
        """See ``MeasuredCluster``."""
        return self._ask(self.brokers[0], DescribeMetadataRequest(topics=())).controller_id

    def leader_of(self, partition: int) -> BrokerId:
        """See ``MeasuredCluster``; only the first leader is known."""
        return self._replicas[partition][0]

    def pid(self, broker_id: BrokerId) -> int:
        """See ``MeasuredCluster``."""
        return self._regent.pid(broker_id)

    def await_leaders(self, dead: Collection[BrokerId], since: float) -> LeaderTimes:
        """See ``MeasuredCluster``.

        The brokers are asked when the last leader has been elected, not before: to describe
        thousands of partitions takes them a part of a second.
        """
        led_ms = self._await_elections(dead, since)
        survivors = [broker_id for broker_id in self.brokers if broker_id not in dead]
        self._await_metadata(survivors, lambda rows: self._are_led(rows, dead))
        return LeaderTimes(led_ms, (time.monotonic() - since) * 1000)

    def requests_received(self, broker_ids: Collection[BrokerId]) -> int:
        """See ``MeasuredCluster``."""
        return sum(
            int(count)
            for broker_id in broker_ids
            for name, count in self._regent.metrics(broker_id).items()
            if name.startswith(_METRIC) and not any(question in name for question in _QUESTIONS)
        )

    def believers(self) -> Believers | None:
        """See ``MeasuredCluster``."""
        return None

    def state_change_cost(self) -> StateChangeCost | None:
        """See ``MeasuredCluster``."""
        return None

    def close(self) -> None:
        """See ``MeasuredCluster``."""
        for actor in self._actors.values():
            actor.close()
        self._regent.close()

    def _await_elections(self, dead: Collection[BrokerId], since: float) -> float:
        """Return when the last leader was written, in milliseconds after ``since``."""
        since_ms = time.time() * 1000 - (time.monotonic() - since) * 1000
        leaderless = {
            number
            for number, replicas in enumerate(self._replicas)
            if replicas[0] in dead and not set(replicas) <= set(dead)
        }
        log, led_ms, deadline = (
            ZooKeeperLog(self.zookeeper.transaction_log),
            0.0,
            since + _TIMEOUT_S,
        )
        while leaderless:
            for transaction in log.read_new():
                elected = (
                    _elected(transaction, dead) if transaction.time_ms >= since_ms - 1 else set()
                )
                if leaderless & elected:
                    leaderless -= elected
                    led_ms = transaction.time_ms - since_ms
            if time.monotonic() > deadline:
                raise MeasuringError(f"{len(leaderless)} partitions have no leader")
            time.sleep(_LOG_POLL_S)
        return max(led_ms, 0.0)

    def _are_led(self, rows: Iterable[MetadataPartition], dead: Collection[BrokerId]) -> bool:
        """Whether these are all partitions, each led by a survivor if it has one."""
        leaders = {row.partition: row.leader for row in rows}
        return len(leaders) == len(self._replicas) and all(
            leaders[number] in replicas and leaders[number] not in dead
            for number, replicas in enumerate(self._replicas)
            if not set(replicas) <= set(dead)
        )

    def _await_metadata(
        self,
        broker_ids: Collection[BrokerId],
        is_reached: Callable[[Iterable[MetadataPartition]], bool],
    ) -> None:
        """Wait until the metadata of every broker are as they should be.

        Between two questions to a broker there is as much time as the answer took.
        """
        deadline = time.monotonic() + _TIMEOUT_S
        for broker_id in broker_ids:
            while True:
                asked = time.monotonic()
                answer = self._ask(broker_id, DescribeMetadataRequest(topics=(_TOPIC,)))
                if is_reached(answer.partitions):
                    break
                if asked > deadline:
                    raise MeasuringError(f"broker {broker_id} does not know every leader")
                time.sleep(max(_LOG_POLL_S, time.monotonic() - asked))

    def _ask(
        self, broker_id: BrokerId, question: DescribeMetadataRequest
    ) -> DescribeMetadataResponse:
        actor = self._actors[broker_id]
        try:
            return ask(actor, question, DescribeMetadataResponse, timeout_s=_ASK_TIMEOUT_S)
        except RequestError as error:
            raise MeasuringError(f"broker {broker_id} does not answer: {error}") from None


def _elected(transaction: Transaction, dead: Collection[BrokerId]) -> set[int]:
    """Return the partitions for which a transaction has a new leader."""
    found = set()
    for write in transaction.writes:
        topic_partition = TopicPartitionStateZNode.partition_of(write.path)
        if topic_partition is not None and write.kind != "delete":
            state = TopicPartitionStateZNode.decode(write.data, 0)
            if state.leader_and_isr.leader not in (NO_LEADER, *dead):
                found.add(topic_partition.partition)
    return found
