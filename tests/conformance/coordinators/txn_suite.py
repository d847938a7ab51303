"""The suite ``txn``: the transaction coordinator over a simulated log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from regent.broker.api.producer_ids import producer_id_apis
from regent.core.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from regent.core.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
)
from regent.core.coordinator.transaction.transaction_records import (
    EncodedRecord,
    StoredTransaction,
    TransactionLoader,
    decode_transaction,
    encode_transaction,
    encode_transaction_key,
)
from regent.core.coordinator.transaction.transaction_state_manager import (
    EpochAndMetadata,
    TransactionConfig,
)
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.producer_ids import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    EndTxn,
    InitProducerId,
    ListTransactions,
    PartitionOutcome,
    TxnMarker,
    TxnMarkerResult,
)
from regent.core.security.session import Session
from regent.transport.kafka.api import KafkaApi, KafkaRequest
from regent.transport.kafka.message_codec import decode, encoded
from tests.conformance.coordinators.coordinator_suite import CoordinatorSuite, SimulatedAppends
from tests.conformance.coordinators.suite import ReadMapping, Step, named, partition_of

PARTITION = 0
OTHERS = 1  # a partition that the coordinator does not own, or that it is loading

_ATTEMPTS = 100


class SimulatedTransactionLog(SimulatedAppends):
    """The log of one partition: bytes, as in a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[EncodedRecord] = []
        self.to_load: list[tuple[int, int]] = []

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[EncodedRecord],
        respond: Callable[[Errors], None],
    ) -> None:
        def finish(error: Errors) -> None:
            if error is Errors.NONE:
                self.records += records
            respond(error)

        self.answer(finish)

    def load(self, partition: int, term: int) -> None:
        self.to_load.append((partition, term))

    def read(self) -> Sequence[TransactionMetadata]:
        loader = TransactionLoader()
        for record in self.records:
            loader.add_batch([record])
        assert not loader.problems
        return loader.transactions()

    def newest(self, transactional_id: str) -> StoredTransaction | None:
        found = dict(self.records).get(encode_transaction_key(transactional_id))
        return None if found is None else decode_transaction(found)


class Markers:
    """The brokers that markers are sent to; they answer when the case says so."""

    def __init__(self) -> None:
        self.sent: dict[BrokerId, Sequence[TxnMarker]] = {}

    def send(self, broker_id: BrokerId, markers: Sequence[TxnMarker]) -> None:
        assert broker_id not in self.sent, "one request at a time"
        self.sent[broker_id] = markers


class TxnSuite(CoordinatorSuite):
    """The coordinator of one partition. Each partition that takes markers has its own leader."""

    log: SimulatedTransactionLog

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        self.now = given.get("now", 0)
        self.epoch = given.get("coordinator_epoch", 1)
        self.log, self.markers = SimulatedTransactionLog(), Markers()
        self.known = None
        if "partitions" in given:
            self.known = set(map(partition_of, given["partitions"]))
        self.leaders: dict[TopicPartition, BrokerId] = {}
        error = given.get("producer_id_error")
        producer_ids = count(given.get("next_producer_id", 1_000))
        self.next_producer_id: Callable[[], int | Errors] = lambda: (
            next(producer_ids) if error is None else Errors[error]
        )
        owned = given.get("owned", "own")
        self.coordinator = TransactionCoordinator(
            TransactionConfig(
                given.get("max_timeout_ms", 900_000),
                given.get("id_expiration_ms", 604_800_000),
                missing_partition_grace_ms=0,
            ),
            self.log,
            self.markers,
            time_ms=lambda: self.now,
            partition_of=lambda _id: PARTITION if owned == "own" else OTHERS,
            leader_of=self._leader_of,
            next_producer_id=self.next_producer_id,
        )
        if owned == "loading":
            self.coordinator.on_elected(OTHERS, 0, 0)
            self.log.to_load.clear()
        self._begin(given.get("ids", {}))

    def _leader_of(self, topic_partition: TopicPartition) -> BrokerId | None:
        if self.known is not None and topic_partition not in self.known:
            return None
        return self.leaders.setdefault(topic_partition, len(self.leaders))

    def _begin(self, ids: Mapping[str, Mapping[str, Any]]) -> None:
        """Own the partition with what the case gives, which is also in the log."""
        found = []
        for name, row in ids.items():
            metadata = _metadata(name, row)
            stored = StoredTransaction(
                metadata.producer_id,
                metadata.producer_epoch,
                metadata.txn_timeout_ms,
                metadata.state,
                _by_topic(metadata.topic_partitions),
                metadata.txn_last_update_timestamp_ms,
                metadata.txn_start_timestamp_ms,
            )
            self.log.records.append((encode_transaction_key(name), encode_transaction(stored)))
            found.append(metadata)
        self.coordinator.on_elected(PARTITION, self.epoch, self.epoch)
        self.log.to_load.clear()
        self.coordinator.states.on_loaded(PARTITION, self.epoch, found)

    # --- steps ---

    def do_init(self, step: Step) -> None:
        transactional_id = step.get("id", "x")

        def respond(result: InitProducerIdResponse) -> None:
            self.answer(
                step,
                error=Errors(result.error_code).name,
                producer=result.producer_id,
                epoch=result.producer_epoch,
            )

        if transactional_id is None:
            self._init_without_id(step)
            return
        producer = ProducerIdAndEpoch(step.get("producer", -1), step.get("epoch", -1))
        if (producer.producer_id == -1) is not (producer.producer_epoch == -1):
            respond(InitProducerIdResponse(error_code=Errors.INVALID_REQUEST))
            return
        request = InitProducerId(
            transactional_id,
            step.get("timeout", 60_000),
            None if producer.producer_id == -1 else producer,
            knows_fencing=step.get("version", 5) >= 4,
        )
        self.coordinator.init_producer_id(request, respond)

    def _init_without_id(self, step: Step) -> None:
        """Ask the handler: it has ids for such producers, without a coordinator."""

        def take_block() -> range:
            producer_id = self.next_producer_id()
            if isinstance(producer_id, Errors):
                raise SessionExpiredError("there is no ZooKeeper")
            return range(producer_id, producer_id + 1)

        with ThreadPoolExecutor(1) as executor:
            (api,) = producer_id_apis(take_block, executor)
            given = asyncio.run(_ask_without_id(api, step))
        self.answer(
            step,
            error=Errors(given.error_code).name,
            producer=given.producer_id,
            epoch=given.producer_epoch,
        )

    def do_add(self, step: Step) -> None:
        self._add_partitions(step, verify_only=False)

    def do_verify(self, step: Step) -> None:
        self._add_partitions(step, verify_only=True)

    def _add_partitions(self, step: Step, *, verify_only: bool) -> None:
        request = AddPartitionsToTxn(
            step.get("id", "x") or "",
            ProducerIdAndEpoch(step["producer"], step["epoch"]),
            tuple(map(partition_of, step["partitions"])),
            verify_only,
            knows_fencing=step.get("version", 3) >= 2,
        )
        self.coordinator.add_partitions(
            request,
            lambda errors: self.answer(
                step, errors={named(tp): error.name for tp, error in errors.items()}
            ),
        )

    def do_end(self, step: Step) -> None:
        request = EndTxn(
            step.get("id", "x") or "",
            ProducerIdAndEpoch(step["producer"], step["epoch"]),
            step["commit"],
            knows_fencing=step.get("version", 4) >= 2,
        )
        self.coordinator.end(request, lambda error: self.answer(step, error=error.name))

    def do_marker_answer(self, step: Step) -> None:
        found = self.coordinator.states.get(step.get("id", "x"))
        assert isinstance(found, EpochAndMetadata)
        for name, error in step["errors"].items():
            topic_partition = partition_of(name)
            leader = self.leaders[topic_partition]
            producer_id = found.metadata.producer_id
            self._await_marker(leader, producer_id)
            outcome = (PartitionOutcome(*topic_partition, Errors[error]),)
            results = [
                TxnMarkerResult(
                    marker.producer_id, outcome if marker.producer_id == producer_id else ()
                )
                for marker in self.markers.sent.pop(leader)
            ]
            self.coordinator.markers.on_answered(leader, results)

    def _await_marker(self, leader: BrokerId, producer_id: int) -> None:
        """Wait until the marker of a producer is sent; those before it get no answer."""
        for _ in range(_ATTEMPTS):
            sent = self.markers.sent.get(leader)
            if sent is None:
                self.coordinator.markers.retry()
            elif any(marker.producer_id == producer_id for marker in sent):
                return
            else:
                del self.markers.sent[leader]
                self.coordinator.markers.on_answered(leader, None)
        raise AssertionError(f"no marker of producer {producer_id} is sent to {leader}")

    def do_retry_appends(self, step: Step) -> None:
        self.coordinator.markers.retry()

    def do_tick(self, step: Step) -> None:
        self.now += step["ms"]

    def do_abort_timed_out(self, step: Step) -> None:
        self.coordinator.abort_timed_out()

    def do_expire_ids(self, step: Step) -> None:
        self.coordinator.expire_ids()

    def do_describe(self, step: Step) -> None:
        found = self.coordinator.describe(step.get("id", "x"))
        self.answer(
            step,
            error=Errors(found.error_code).name,
            state=found.transaction_state,
            producer=found.producer_id,
            epoch=found.producer_epoch,
            timeout=found.transaction_timeout_ms,
            start=found.transaction_start_time_ms,
            partitions=sorted(
                named(TopicPartition(row.topic, number))
                for row in found.topics
                for number in row.partitions
            ),
        )

    def do_list(self, step: Step) -> None:
        found = self.coordinator.states.list_transactions(
            ListTransactions(
                tuple(step.get("states", ())),
                tuple(step.get("producers", ())),
                step.get("duration", -1),
            )
        )
        self.answer(
            step,
            error=Errors(found.error_code).name,
            ids=sorted(row.transactional_id for row in found.transaction_states),
            unknown=list(found.unknown_state_filters),
        )

    def do_resign(self, step: Step) -> None:
        self.coordinator.on_resigned(PARTITION, None)

    def do_elect(self, step: Step) -> None:
        self.epoch = step["epoch"]
        self.coordinator.on_elected(PARTITION, self.epoch, self.epoch)
        for partition, term in self.log.to_load:
            self.coordinator.on_loaded(partition, term, self.log.read())
        self.log.to_load.clear()

    # --- expectations ---

    def see(self, key: str, expected: Any) -> Any:
        if key == "ids":
            return {name: self._id(name) for name in expected}
        if key == "log":
            return {name: _seen_record(self.log.newest(name)) for name in expected}
        if key == "markers":
            return [
                {
                    "id": pending.metadata.transactional_id,
                    "producer": pending.transit.producer_id,
                    "epoch": pending.transit.producer_epoch,
                    "commit": pending.marker(0, ()).is_commit,
                    "partitions": sorted(map(named, pending.metadata.topic_partitions)),
                    "coordinator_epoch": pending.coordinator_epoch,
                }
                for pending in self.coordinator.markers.pending
            ]
        return super().see(key, expected)

    def _id(self, name: str) -> Any:
        found = self.coordinator.states.get(name)
        if not isinstance(found, EpochAndMetadata):
            return None
        metadata = found.metadata
        pending = metadata.pending_state
        return {
            "producer": metadata.producer_id,
            "last_producer": metadata.last_producer_id,
            "epoch": metadata.producer_epoch,
            "last_epoch": metadata.last_producer_epoch,
            "timeout": metadata.txn_timeout_ms,
            "state": metadata.state.value,
            "partitions": sorted(map(named, metadata.topic_partitions)),
            "start": metadata.txn_start_timestamp_ms,
            "update": metadata.txn_last_update_timestamp_ms,
            "pending": None if pending is None else pending.value,
            "failed_fence": metadata.has_failed_epoch_fence,
        }


async def _ask_without_id(api: KafkaApi, step: Step) -> InitProducerIdResponse:
    version = step.get("version", 5)
    asked = InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout_ms=step.get("timeout", 60_000),
        producer_id=step.get("producer", -1),
        producer_epoch=step.get("epoch", -1),
    )

    def message_of(body: bytes | bytearray) -> KafkaRequest:
        view = memoryview(bytearray(body))
        return KafkaRequest(api.key, version, 1, "client", Session("127.0.0.1"), view)

    is_flexible = message_of(b"").is_flexible
    answered = await api.handle(message_of(encoded(asked, version, is_flexible=is_flexible)))
    assert answered is not None
    (body,) = answered
    assert isinstance(body, bytearray)
    return decode(InitProducerIdResponse, message_of(body))


def _metadata(name: str, row: Mapping[str, Any]) -> TransactionMetadata:
    pending = row.get("pending")
    return TransactionMetadata(
        name,
        row["producer"],
        row.get("epoch", -1),
        row.get("timeout", 60_000),
        TransactionState(row.get("state", "Empty")),
        set(map(partition_of, row.get("partitions", ()))),
        row.get("start", -1),
        row.get("update", 0),
        row.get("last_producer", -1),
        row.get("last_epoch", -1),
        None if pending is None else TransactionState(pending),
        row.get("failed_fence", False),
    )


def _by_topic(partitions: set[TopicPartition]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    rows: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        rows.setdefault(topic, []).append(number)
    return tuple((topic, tuple(numbers)) for topic, numbers in rows.items())


def _seen_record(stored: StoredTransaction | None) -> Any:
    if stored is None:
        return None
    return {
        "producer": stored.producer_id,
        "epoch": stored.producer_epoch,
        "timeout": stored.txn_timeout_ms,
        "state": stored.state.value,
        "partitions": sorted(
            f"{topic}-{number}" for topic, numbers in stored.partitions or () for number in numbers
        ),
        "start": stored.txn_start_timestamp_ms,
        "update": stored.txn_last_update_timestamp_ms,
    }
