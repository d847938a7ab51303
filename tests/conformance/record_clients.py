"""A producer and a consumer of a simulated cluster, and throttles on its replication."""

from __future__ import annotations

import itertools
from collections import Counter
from itertools import pairwise

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.client import ACKS_ALL, ConsumedPartition, ConsumerFetch, ConsumerPosition
from tests.simulation.client_requests import (
    ClientRequest,
    ConsumeRequest,
    ConsumeResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.simulation.cluster import Cluster
from tests.simulation.configurations import set_config
from tests.simulation.network import AnswerBody
from tests.support.record_batches import batch, records_of

TIMEOUT_MS = 120_000
ATTEMPT_MS = 5_000
STEP_MS = 100
EVERYTHING = 2**31 - 1
MAX_RESETS = 100
_PRODUCER_IDS = itertools.count(1_000)


class RecordClient:
    """Idempotent producers that retry until they succeed, and a consumer.

    ``acked`` are the acknowledged records by partition.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.acked: dict[TopicPartition, list[str]] = {}
        self.starts: dict[TopicPartition, int] = {}  # log start offsets above zero
        self._producer_ids: dict[tuple[TopicPartition, str], int] = {}

    def produce(self, topic_partition: TopicPartition, value: str) -> None:
        """Append a record and wait for its acknowledgement."""
        until_ms = self._cluster.now_ms + TIMEOUT_MS
        error = Errors.LEADER_NOT_AVAILABLE
        while self._cluster.now_ms < until_ms:
            error = self.try_to_produce(topic_partition, value)
            if error is Errors.NONE:
                return
            self._run_for(STEP_MS)
        raise AssertionError(f"{topic_partition}: {value} was not acknowledged: {error.name}")

    def try_to_produce(self, topic_partition: TopicPartition, value: str) -> Errors:
        """Send one request to the leader."""
        acked = self.acked.setdefault(topic_partition, [])
        # A producer of its own: its sequence cannot be lost in an unclean election.
        producer_id = self._producer_ids.setdefault((topic_partition, value), next(_PRODUCER_IDS))
        data = batch(value.encode(), producer_id=producer_id, producer_epoch=0, base_sequence=0)
        answer = self._ask(
            self._leader(topic_partition), ProduceRequest(topic_partition, ACKS_ALL, data)
        )
        if answer is None:
            return Errors.REQUEST_TIMED_OUT
        assert isinstance(answer, ProduceResponse)
        if answer.outcome.error_code is Errors.NONE:
            acked.append(value)
        return answer.outcome.error_code

    def values(self, topic_partition: TopicPartition) -> list[str]:
        """Return the consumed records, from the first one to the high watermark."""
        found: list[str] = []
        offset, end = self.starts.get(topic_partition, 0), EVERYTHING
        while offset < end:
            outcome = self.fetch(topic_partition, offset)
            assert outcome is not None, f"{topic_partition} cannot be read"
            assert outcome.error_code is Errors.NONE, outcome
            records = records_of(outcome.records.read())
            found += [(record.value or b"").decode() for record in records]
            offset = records[-1].offset + 1 if records else outcome.high_watermark
            end = outcome.high_watermark
        return found

    def fetch(
        self, topic_partition: TopicPartition, offset: int, last_fetched_epoch: int = NO_EPOCH
    ) -> ConsumedPartition | None:
        """Fetch from the leader from ``offset`` on; None without an answer."""
        position = ConsumerPosition(offset, EVERYTHING, last_fetched_epoch=last_fetched_epoch)
        request = ConsumeRequest(ConsumerFetch({topic_partition: position}), waits=False)
        answer = self._ask(self._leader(topic_partition), request)
        return answer.partitions[topic_partition] if isinstance(answer, ConsumeResponse) else None

    def delete_before(self, topic_partition: TopicPartition, offset: int) -> None:
        """Delete the first records of a partition, on all replicas."""
        answer = self._ask(
            self._leader(topic_partition), DeleteRecordsRequest(topic_partition, offset)
        )
        assert isinstance(answer, DeleteRecordsResponse), (
            f"{topic_partition}: no records are deleted"
        )
        assert answer.outcome.error_code is Errors.NONE, answer.outcome
        del self.acked[topic_partition][: offset - self.starts.get(topic_partition, 0)]
        self.starts[topic_partition] = offset

    def _leader(self, topic_partition: TopicPartition) -> BrokerId | None:
        state = self._cluster.state(topic_partition)
        return None if state is None else state.leader_and_isr.leader

    def _ask(self, broker_id: BrokerId | None, request: ClientRequest) -> AnswerBody | None:
        broker = None if broker_id is None else self._cluster.brokers.get(broker_id)
        if broker is None:
            return None
        answers: list[AnswerBody] = []
        self._cluster.network.ask(None, broker.client_endpoint, request, answers.append)
        until_ms = self._cluster.now_ms + ATTEMPT_MS
        while not answers and self._cluster.now_ms < until_ms:
            self._run_for(STEP_MS)
        return answers[0] if answers else None

    def _run_for(self, ms: int) -> None:
        steps = self._cluster.steps()
        if steps:
            self._cluster.take(steps[0])
        else:
            self._cluster.time.advance(ms)


class StandingConsumer:
    """Reads one partition continuously, and stores what its application saw.

    If its offset is out of range it starts again with the first record: a reset. If the log has
    lost what it read last, it goes back to where both agree: a truncation (KIP-595).
    """

    def __init__(self, client: RecordClient, topic_partition: TopicPartition) -> None:
        self.name = topic_partition
        self.seen: list[tuple[int, str]] = []  # offsets and values
        self.resets = 0
        self.truncations = 0
        self._epoch = NO_EPOCH  # of the last record
        self._client = client
        self._position = 0

    @property
    def values(self) -> list[str]:
        """The values it saw."""
        return [value for _, value in self.seen]

    @property
    def duplicates(self) -> list[str]:
        """The values it saw twice."""
        counts = Counter(self.values)
        return [value for value, count in counts.items() if count > 1]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The pairs of offsets between which it saw no record."""
        offsets = [offset for offset, _ in self.seen]
        return [(one, next) for one, next in pairwise(offsets) if next > one + 1]

    def read(self) -> None:
        """Read up to the high watermark."""
        end = EVERYTHING
        while self._position < end:
            outcome = self._client.fetch(self.name, self._position, self._epoch)
            if outcome is None:
                return  # it retries at the next call
            if outcome.error_code is Errors.OFFSET_OUT_OF_RANGE:
                self.resets += 1
                assert self.resets <= MAX_RESETS, f"{self.name}: reset again and again"
                self._position = self._client.starts.get(self.name, 0)
                self._epoch = NO_EPOCH
                continue
            if outcome.error_code is not Errors.NONE:
                return
            if outcome.diverging_epoch != NO_EPOCH:
                self.truncations += 1
                self._position, self._epoch = outcome.diverging_end_offset, outcome.diverging_epoch
                continue
            records = records_of(outcome.records.read())
            self.seen += [(r.offset, (r.value or b"").decode()) for r in records]
            if not records:
                return
            self._position, end = records[-1].offset + 1, outcome.high_watermark
            self._epoch = records[-1].leader_epoch


def throttle(cluster: Cluster, replicas: dict[str, dict[str, str]], bytes_per_second: int) -> None:
    """Throttle replicas on all brokers, by side ("leader", "follower") and topic."""
    for side, named in replicas.items():
        for broker_id in cluster.brokers:
            rate = {f"{side}.replication.throttled.rate": str(bytes_per_second)}
            set_config(cluster.zookeeper, f"brokers/{broker_id}", rate)
        for topic, names in named.items():
            throttled = {f"{side}.replication.throttled.replicas": names}
            set_config(cluster.zookeeper, f"topics/{topic}", throttled)
