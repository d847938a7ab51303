"""Our own design, the controller, as a cluster to measure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from pathlib import Path
from typing import Final

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.addresses import tcp_endpoint
from regent.core.model import NO_LEADER, BrokerId, ReplicaAssignment
from regent.core.placement.replica_placer import place_ring
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from regent.designs.measuring.four_letter_words import FourLetterWords
from regent.designs.measuring.held_processes import held
from regent.designs.measuring.kafka_questions import KafkaQuestions
from regent.designs.measuring.measured_cluster import (
    REPLICATION_FACTOR,
    SESSION_TIMEOUT_MS,
    TOPIC,
    Believers,
    BrokerCounts,
    LeaderTimes,
    MeasuringError,
    StateChangeCost,
)
from regent.designs.measuring.transaction_log import Transaction, ZooKeeperLog
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.transport.control.client import RequestError
from regent.transport.control.remote_ref import RemoteActorRef, ask
from regent.zk.client.operations import Create
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.znodes import BrokerIdZNode, TopicPartitionStateZNode, TopicZNode, partition_of_state

_TIMEOUT_S: Final = 600.0
_LOG_POLL_S: Final = 0.005
_METRIC: Final = "regent_control_requests_total"


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
            *("--brokers", str(brokers), "--no-placement-service", "--no-internal-topics"),
            *("--session-timeout-ms", str(SESSION_TIMEOUT_MS)),
            *(option for setting in settings for option in ("--broker-setting", setting)),
            zookeeper=self.zookeeper,
        )
        self.brokers = self._regent.brokers
        entries = self._regent.description["brokers"]
        self._actors = {
            entry["id"]: RemoteActorRef(
                self._regent.context,
                tcp_endpoint(entry["host"], entry["control_port"]),
                client_id="designs",
            )
            for entry in entries
        }
        self._addresses = {entry["id"]: (entry["host"], entry["port"]) for entry in entries}
        self._sessions: dict[BrokerId, int] = {}
        self._log = ZooKeeperLog(self.zookeeper.transaction_log)
        self._replicas: list[tuple[BrokerId, ...]] = []
        self._leaders: dict[int, BrokerId] = {}

    def create_partitions(self, count: int) -> None:
        """See ``MeasuredCluster``. The controller does not lead partition 0 if there are others."""
        self._regent.await_ready()
        controller = self._regent.await_controller()
        ring = sorted(
            self.brokers, key=lambda broker_id: (broker_id - controller - 1) % len(self.brokers)
        )
        factor = min(REPLICATION_FACTOR, len(ring))
        self._replicas = [place_ring(ring, number, factor) for number in range(count)]
        assignments = {number: ReplicaAssignment(r) for number, r in enumerate(self._replicas)}
        data = TopicZNode.encode(encode_topic_id(os.urandom(16)), assignments)
        self._regent.zookeeper.multi([Create(TopicZNode.path(TOPIC), data)])
        self._await_metadata(self.brokers, lambda rows: self._are_led(rows, ()))
        for broker_id in self.brokers:
            registration = self._regent.zookeeper.get(BrokerIdZNode.path(broker_id))
            assert registration is not None
            self._sessions[broker_id] = registration.stat.ephemeral_owner
        self._regent.zookeeper.close()  # its pings would be counted
        self._log.read_new()

    def controller(self) -> BrokerId | None:
        """See ``MeasuredCluster``."""
        return self._ask(self.brokers[0], ()).controller_id

    def leader_of(self, partition: int) -> BrokerId:
        """See ``MeasuredCluster``."""
        self._leaders = self._leaders_known_to(self.brokers[0])
        return self._leaders[partition]

    def pid(self, broker_id: BrokerId) -> int:
        """See ``MeasuredCluster``."""
        return self._regent.pid(broker_id)

    def await_leaders(self, dead: Collection[BrokerId], since: float) -> LeaderTimes:
        """See ``MeasuredCluster``; call ``leader_of`` before the kill.

        The brokers are asked when the last leader has been elected, not before: to describe
        thousands of partitions takes them a part of a second.
        """
        led_ms = self._await_elections(dead, since)
        self._await_metadata(self._survivors(dead), lambda rows: self._are_led(rows, dead))
        return LeaderTimes(led_ms, (time.monotonic() - since) * 1000)

    def partitions_led_by(self, broker_ids: Collection[BrokerId]) -> int:
        """See ``MeasuredCluster``; as of the last ``leader_of``."""
        return sum(leader in broker_ids for leader in self._leaders.values())

    def broker_counts(self, broker_ids: Collection[BrokerId]) -> BrokerCounts:
        """See ``MeasuredCluster``; only the controller listens, and does not count it."""
        requests = sum(
            self._requests(broker_id) - self._requests(broker_id, "DescribeMetadata")
            for broker_id in broker_ids
        )
        return BrokerCounts(requests, None)

    def believers(self) -> Believers | None:
        """See ``MeasuredCluster``.

        The followers stand still while the leader gets a record, so that it waits for them. Then
        the leader stands still until another one says that it leads. Meanwhile Kafka clients ask
        whether it leads and send another record, which waits in its socket. The others stand still
        again until it has answered, so that nobody can tell it of the new leader before. The
        followers may have got the first record in the answer to a fetch that waited: then it may be
        acknowledged.
        """
        former = self.leader_of(0)
        others = self._survivors([former])
        other_pids = [self.pid(broker_id) for broker_id in others]
        with ExitStack() as stack:
            producer = stack.enter_context(self._client_of(former))
            former_held = stack.enter_context(ExitStack())
            with held(other_pids):
                producer.produce()
                eventually(lambda: self._log_end_offset(former) == 1, "a record has come")
                former_held.enter_context(held([self.pid(former)]))
            self.await_leaders([former], time.monotonic())
            eventually(lambda: any(map(self._leads, others)), "another replica says that it leads")
            kept = self._log_end_offset(self._leaders_known_to(others[0])[0])
            asker = stack.enter_context(self._client_of(former))
            asker.ask_whether_it_leads()
            producer.produce()
            leaders = sum(map(self._leads, others))
            with held(other_pids):
                former_held.close()
                leaders += asker.is_answered_without_error()
            has_first = producer.is_answered_without_error()
            has_second = producer.is_answered_without_error()
        return Believers(leaders, (has_first and kept < 1) or (has_second and kept < 2))

    def state_change_cost(self) -> StateChangeCost | None:
        """See ``MeasuredCluster``: what a follower hears when its leader dies."""
        dead, controller = self.leader_of(0), self.controller()
        told = [b for b in self._replicas[0] if b not in (dead, controller)]
        if not told:
            return None
        words, session = FourLetterWords(self.zookeeper.port), self._sessions[told[0]]
        before = words.cons()[session].last_request, self._requests(told[0], "LeaderAndIsr")
        since = time.monotonic()
        os.kill(self.pid(dead), signal.SIGKILL)
        self.await_leaders([dead], since)
        after = words.cons()[session].last_request, self._requests(told[0], "LeaderAndIsr")
        return StateChangeCost(after[0] - before[0], after[1] - before[1])

    def close(self) -> None:
        """See ``MeasuredCluster``; brokers need not hand over thousands of partitions."""
        for actor in self._actors.values():
            actor.close()
        for broker_id in self.brokers:
            with suppress(ProcessLookupError, ValueError):
                os.kill(self._regent.pid(broker_id), signal.SIGKILL)
        self._regent.close()

    def _leaders_known_to(self, broker_id: BrokerId) -> dict[int, BrokerId]:
        rows = self._ask(broker_id, (TOPIC,)).partitions
        return {row.partition: row.leader for row in rows}

    def _requests(self, broker_id: BrokerId, request: str = "") -> int:
        """Return how many requests of a kind came to the control port of a broker."""
        found = self._regent.metrics(broker_id).items()
        return sum(int(n) for name, n in found if name.startswith(_METRIC) and request in name)

    def _log_end_offset(self, broker_id: BrokerId) -> float:
        metrics = self._regent.metrics(broker_id)
        return metrics[f'kafka_log_log_logendoffset{{topic="{TOPIC}",partition="0"}}']

    def _leads(self, broker_id: BrokerId) -> bool:
        """Whether a broker tells a client the end of partition 0.

        A new leader does not until it knows how much of it is committed (KIP-207).
        """
        with self._client_of(broker_id) as client:
            client.ask_whether_it_leads()
            return client.is_answered_without_error()

    def _client_of(self, broker_id: BrokerId) -> AbstractContextManager[KafkaQuestions]:
        return closing(KafkaQuestions(*self._addresses[broker_id], TOPIC))

    def _survivors(self, dead: Collection[BrokerId]) -> list[BrokerId]:
        return [broker_id for broker_id in self.brokers if broker_id not in dead]

    def _await_elections(self, dead: Collection[BrokerId], since: float) -> float:
        """Return when the last leader was written, in milliseconds after ``since``."""
        since_ms = time.time() * 1000 - (time.monotonic() - since) * 1000
        leaderless = {
            number
            for number, replicas in enumerate(self._replicas)
            if self._leaders[number] in dead and not set(replicas) <= set(dead)
        }
        led_ms = 0.0
        while leaderless:
            for transaction in self._log.read_new():
                elected = leaderless & _elected(transaction, dead)
                if elected:
                    leaderless -= elected
                    led_ms = transaction.time_ms - since_ms
            if time.monotonic() > since + _TIMEOUT_S:
                raise MeasuringError(f"{len(leaderless)} partitions have no leader")
            time.sleep(_LOG_POLL_S)
        return led_ms

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
            asked = time.monotonic()
            while not is_reached(self._ask(broker_id, (TOPIC,)).partitions):
                if time.monotonic() > deadline:
                    raise MeasuringError(f"broker {broker_id} does not know every leader")
                time.sleep(max(_LOG_POLL_S, time.monotonic() - asked))
                asked = time.monotonic()

    def _ask(self, broker_id: BrokerId, topics: tuple[str, ...]) -> DescribeMetadataResponse:
        """Return the metadata of a broker, which answers when it has handled earlier requests."""
        actor, question = self._actors[broker_id], DescribeMetadataRequest(topics)
        try:
            return ask(actor, question, DescribeMetadataResponse, timeout_s=_TIMEOUT_S)
        except RequestError as error:
            raise MeasuringError(f"broker {broker_id} does not answer: {error}") from None


def _elected(transaction: Transaction, dead: Collection[BrokerId]) -> set[int]:
    """Return the partitions for which a transaction has a new leader."""
    found = set()
    for write in transaction.writes:
        topic_partition = partition_of_state(write.path)
        if topic_partition is not None and write.kind != "delete":
            state = TopicPartitionStateZNode.decode(write.data, 0)
            if state.leader_and_isr.leader not in (NO_LEADER, *dead):
                found.add(topic_partition.partition)
    return found
