"""Our own design, the controller, as a cluster to measure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.designs.measuring.measured_cluster import (
    SESSION_TIMEOUT_MS,
    TOPIC,
    LeaderTimes,
    MeasuredCluster,
    MeasuringError,
    milliseconds_since,
)
from regent.designs.measuring.zookeeper_counts import (
    FOUR_LETTER_WORDS,
    ZooKeeperCounts,
    mntr,
    znodes_written,
)
from regent.testing.regent_cluster import RegentCluster
from regent.transport.control.client import RequestError
from regent.transport.control.remote_ref import RemoteActorRef, ask
from regent.zk.client.operations import Create, Znode
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.codecs.topic_znodes import random_uuid
from regent.zk.znodes import TopicPartitionStateZNode, TopicZNode

_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.005
_METRIC: Final = "regent_control_requests_total"
_ANOTHER_CONTROLLER: Final = 3
"""Writes before the elections of the next controller: /controller is deleted and created, and the
controller epoch is raised."""


class V3Cluster(MeasuredCluster):
    """Real brokers, and what they tell at their control ports and in their metrics.

    Leaderships do not return to the preferred replicas by themselves: that would be counted, too.
    """

    def __init__(self, folder: Path, brokers: int) -> None:
        self.zookeeper = EmbeddedZooKeeper(
            folder / "zookeeper", four_letter_words=FOUR_LETTER_WORDS
        )
        self._regent = RegentCluster(
            folder / "data",
            *("--brokers", str(brokers), "--no-placement-service", "--no-internal-topics"),
            *("--session-timeout-ms", str(SESSION_TIMEOUT_MS)),
            *(
                option
                for broker_id in range(brokers)
                for option in (
                    "--broker-setting",
                    f"{broker_id}:auto_leader_rebalance_enable=false",
                )
            ),
            zookeeper=self.zookeeper,
        )
        self.brokers = self._regent.brokers
        self._controller: BrokerId | None = None  # when it was last asked for
        self._actors = {
            broker_id: RemoteActorRef(
                self._regent.context, self._regent.control_endpoint(broker_id), client_id="designs"
            )
            for broker_id in self.brokers
        }

    def _ring(self) -> Sequence[BrokerId]:
        """The controller does not lead partition 0 if there are other brokers."""
        self._regent.await_ready()
        controller = self._regent.await_controller()
        self._regent.zookeeper.close()  # its pings would be counted
        count = len(self.brokers)
        return sorted(self.brokers, key=lambda broker_id: (broker_id - controller - 1) % count)

    def _create(self, session: ZooKeeperClient) -> None:
        assignments = {number: ReplicaAssignment(r) for number, r in enumerate(self.replicas)}
        data = TopicZNode.encode(random_uuid(), assignments)
        session.multi([Create(TopicZNode.path(TOPIC), data)])

    def _isr_path(self, topic_partition: TopicPartition) -> str:
        return TopicPartitionStateZNode.path(topic_partition)

    def _isr_in(self, znode: Znode) -> Collection[BrokerId]:
        return TopicPartitionStateZNode.decode(znode.data, 0).leader_and_isr.isr

    def leaders(self) -> Mapping[int, BrokerId]:
        return self._leaders_known_to(self.brokers[0])

    def controller(self) -> BrokerId | None:
        self._controller = self._ask(self.brokers[0], ()).controller_id
        return self._controller

    def pid(self, broker_id: BrokerId) -> int:
        return self._regent.pid(broker_id)

    def await_leaders(
        self, dead: Collection[BrokerId], led: int, before: ZooKeeperCounts, killed: float
    ) -> LeaderTimes:
        """See ``MeasuredCluster.await_leaders``; the controller writes the elections first.

        The brokers are asked when the last leader has been elected, not before: to describe
        thousands of partitions takes them a part of a second.
        """
        elected = before.znodes_written + len(dead) + led
        elected += _ANOTHER_CONTROLLER * (self._controller in dead)
        while (written := znodes_written(mntr(self.zookeeper.port))) < elected:
            if milliseconds_since(killed) > _TIMEOUT_S * 1000:
                raise MeasuringError(f"{elected - written} elections are missing")
            time.sleep(_POLL_S)
        led_ms = milliseconds_since(killed)
        self._await(lambda: self._are_led(dead), "a broker does not know every leader")
        return LeaderTimes(led_ms, milliseconds_since(killed))

    def _are_led(self, dead: Collection[BrokerId]) -> bool:
        """Whether each is led by a survivor if it has one."""
        return all(
            leaders.get(number) in set(replicas) - set(dead)
            for leaders in map(self._leaders_known_to, set(self.brokers) - set(dead))
            for number, replicas in enumerate(self.replicas)
            if not set(replicas) <= set(dead)
        )

    def counts(self, broker_ids: Collection[BrokerId]) -> Mapping[str, int]:
        """See ``MeasuredCluster.counts``: requests to control ports, but for our own questions."""
        metrics = [metric for b in broker_ids for metric in self._regent.metrics(b).items()]
        received = sum(
            int(count)
            for name, count in metrics
            if name.startswith(_METRIC) and "DescribeMetadata" not in name
        )
        return {"requests between brokers": received}

    def close(self) -> None:
        """See ``MeasuredCluster.close``; brokers need not hand over thousands of partitions."""
        for actor in self._actors.values():
            actor.close()
        for broker_id in self.brokers:
            with suppress(ProcessLookupError, ValueError):
                os.kill(self._regent.pid(broker_id), signal.SIGKILL)
        self._regent.close()

    def _leaders_known_to(self, broker_id: BrokerId) -> dict[int, BrokerId]:
        return {row.partition: row.leader for row in self._ask(broker_id, (TOPIC,)).partitions}

    def _ask(self, broker_id: BrokerId, topics: tuple[str, ...]) -> DescribeMetadataResponse:
        """Return the metadata of a broker, which answers when it has handled earlier requests."""
        actor, question = self._actors[broker_id], DescribeMetadataRequest(topics)
        try:
            return ask(actor, question, DescribeMetadataResponse, timeout_s=_TIMEOUT_S)
        except RequestError as error:
            raise MeasuringError(f"broker {broker_id} does not answer: {error}") from None
