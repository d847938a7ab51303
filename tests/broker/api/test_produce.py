from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.protocol.producer import ProduceRequest

from regent.broker.api.produce import ProduceTarget, produce_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ProducedPartition, RecordRules
from regent.core.protocol.transactions import TransactionToVerify, TransactionVerifier
from regent.core.replica_logs import NOT_VERIFIED
from regent.core.security.session import Session
from regent.records import compression
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.primitives import MalformedRequestError
from tests.broker.api.canned_replicas import EXECUTOR, CannedReplicas, cached
from tests.support.record_batches import TRANSACTIONAL_MASK, batch, keyed_batch, resealed
from tests.transport.kafka.wire import ask, call

VERSIONS = range(3, 12)
OLD_VERSIONS = range(3)
ORDERS_0, ORDERS_1, TEA_0 = (
    TopicPartition("orders", 0),
    TopicPartition("orders", 1),
    TopicPartition("té", 0),
)
WRITTEN = ProducedPartition(Errors.NONE, base_offset=7, log_append_time_ms=99, log_start_offset=3)
ZSTD = 4
PRODUCER_ID = 4_000


OFFSETS_0 = TopicPartition("__consumer_offsets", 0)


def produce(
    records: dict[TopicPartition, bytes | None],
    acks: int = -1,
    timeout_ms: int = 1000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    by_topic: dict[str, list[Any]] = {}
    topic_type = ProduceRequest.TopicProduceData
    for topic_partition, data in records.items():
        by_topic.setdefault(topic_partition.topic, []).append(
            topic_type.PartitionProduceData(index=topic_partition.partition, records=data)
        )
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[topic_type(name=t, partition_data=data) for t, data in by_topic.items()],
    )


def zstandard(*values: bytes) -> bytes:
    """Return a batch whose records are compressed."""
    pairs = [(None, value) for value in values]
    return keyed_batch(*pairs, attributes=ZSTD, compress=zstd_compressed)


def zstd_compressed(data: bytes) -> bytes:
    return bytes(pyarrow.Codec("zstd").compress(data, asbytes=True))


def in_transaction(producer_id: int = PRODUCER_ID, producer_epoch: int = 0) -> bytes:
    """Return a batch of a transaction."""
    return batch(
        b"a",
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL_MASK,
    )


class CannedVerifier:
    """Says at once what is prepared, and otherwise that all partitions are part of it."""

    def __init__(self, errors: Mapping[TopicPartition, Errors] | None = None) -> None:
        self.errors = errors or {}
        self.asked: list[TransactionToVerify] = []

    def verify(
        self,
        transaction: TransactionToVerify,
        respond: Callable[[Mapping[TopicPartition, Errors]], None],
    ) -> None:
        self.asked.append(transaction)
        respond({name: self.errors.get(name, Errors.NONE) for name in transaction.partitions})


def apis(
    replicas: ProduceTarget, verifier: TransactionVerifier | None = None
) -> Sequence[KafkaApi]:
    return produce_apis(replicas, cached(), EXECUTOR, verifier)


def outcomes(answer: Any) -> dict[TopicPartition, Any]:
    return {
        TopicPartition(topic.name, partition.index): partition
        for topic in answer.responses
        for partition in topic.partition_responses
    }


def errors(answer: Any) -> dict[TopicPartition, Errors]:
    return {
        topic_partition: Errors(partition.error_code)
        for topic_partition, partition in outcomes(answer).items()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_returns_the_offsets_of_records(version: int):
    replicas = CannedReplicas()
    records = {ORDERS_0: batch(b"a"), ORDERS_1: batch(b"b", b"c"), TEA_0: batch(b"d")}
    replicas.produced = dict.fromkeys(records, WRITTEN)

    answer = ask(apis(replicas), produce(dict(records)), version)

    assert replicas.acks == -1
    assert replicas.records == records
    assert answer.throttle_time_ms == 0
    for partition in outcomes(answer).values():
        assert (partition.error_code, partition.base_offset) == (0, 7)
        assert partition.log_append_time_ms == 99
        assert partition.log_start_offset == (3 if version >= 5 else -1)
    assert list(outcomes(answer)) == [ORDERS_0, ORDERS_1, TEA_0]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_returns_errors(version: int):
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_0: ProducedPartition(Errors.INVALID_RECORD, message="no magic")}

    answer = ask(apis(replicas), produce({ORDERS_0: batch(b"a")}), version)

    (partition,) = outcomes(answer).values()
    assert partition.error_code == Errors.INVALID_RECORD
    assert partition.base_offset == -1
    assert partition.error_message == ("no magic" if version >= 8 else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_another_broker_leads_is_answered_with_that_leader(version: int):
    replicas = CannedReplicas()
    records = dict.fromkeys([ORDERS_0, ORDERS_1, TEA_0], batch(b"a"))
    replicas.produced = {
        ORDERS_0: ProducedPartition(Errors.NOT_LEADER_OR_FOLLOWER),
        ORDERS_1: WRITTEN,
        TEA_0: ProducedPartition(Errors.NOT_LEADER_OR_FOLLOWER),
    }
    replicas.leaders = {ORDERS_0: (2, 7), ORDERS_1: (1, 1), TEA_0: (3, 8)}

    answer = ask(apis(replicas), produce(dict(records)), version)

    leaders = {
        topic_partition: (named.leader_id, named.leader_epoch)
        for topic_partition, partition in outcomes(answer).items()
        if (named := partition.current_leader) is not None
    }
    if version < 10:
        assert leaders == {}
        return
    assert leaders == {ORDERS_0: (2, 7), TEA_0: (3, 8)}
    (alive,) = answer.node_endpoints
    assert (alive.node_id, alive.host, alive.port, alive.rack) == (2, "hôst", 9092, "rack-a")


def test_batches_are_passed_on_without_a_copy():
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_0: WRITTEN}
    call(apis(replicas), produce({ORDERS_0: batch(b"a")}), 7)
    (data,) = replicas.records.values()
    assert isinstance(data, memoryview)
    assert not data.readonly


@pytest.mark.parametrize("count", [1, 2_000])
def test_a_waiting_request_keeps_no_records_in_memory(count: int):
    replicas = CannedReplicas(holds=True)
    replicas.produced = {ORDERS_0: WRITTEN}
    received = bytearray(produce({ORDERS_0: batch(*[b"a"] * count)}).encode(version=7))
    (api,) = apis(replicas)

    async def main() -> None:
        async def handle() -> object:
            return await api.handle(
                KafkaRequest(api.key, 7, 1, None, Session(""), memoryview(received))
            )

        handling = asyncio.ensure_future(handle())
        while not replicas.held:
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(EXECUTOR, len, "earlier work")
        replicas.records = {}
        received.extend(b"no view of it is left, or this is an error")
        replicas.held[0].answer()()
        assert await handling is not None

    asyncio.run(main())


def test_acks_0_gets_no_response():
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_0: WRITTEN}
    assert call(apis(replicas), produce({ORDERS_0: batch(b"a")}, acks=0), 7) is None
    assert replicas.acks == 0


def test_acks_0_closes_the_connection_after_an_error():
    replicas = CannedReplicas()
    replicas.produced = {
        ORDERS_0: WRITTEN,
        ORDERS_1: ProducedPartition(Errors.NOT_LEADER_OR_FOLLOWER),
    }
    records = dict.fromkeys(replicas.produced, batch(b"a"))
    with pytest.raises(UnansweredRequestError, match="orders-1: NOT_LEADER_OR_FOLLOWER"):
        call(apis(replicas), produce({**records}, acks=0), 7)


def test_a_request_that_is_not_replicated_in_time_times_out():
    replicas = CannedReplicas(holds=True)
    replicas.produced = {ORDERS_0: ProducedPartition(Errors.REQUEST_TIMED_OUT)}
    answer = ask(apis(replicas), produce({ORDERS_0: batch(b"a")}, timeout_ms=1), 7)
    assert replicas.expired == replicas.held
    assert errors(answer) == {ORDERS_0: Errors.REQUEST_TIMED_OUT}


def test_clients_do_not_write_to_internal_topics():
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_0: ProducedPartition(Errors.NONE)}
    request = produce({OFFSETS_0: batch(b"a", key=b"k"), ORDERS_0: batch(b"a")})
    assert errors(ask(apis(replicas), request, 7)) == {
        OFFSETS_0: Errors.INVALID_TOPIC_EXCEPTION,
        ORDERS_0: Errors.NONE,
    }


def test_records_of_a_transaction_need_a_transactional_id():
    replicas = CannedReplicas()
    request = produce({ORDERS_0: in_transaction(), ORDERS_1: batch(b"b")})
    assert errors(ask(apis(replicas), request, 7)) == {
        ORDERS_0: Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ORDERS_1: Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    assert not replicas.records


def test_records_of_a_transaction_are_of_one_producer():
    replicas = CannedReplicas()
    for other in (in_transaction(producer_id=5), in_transaction(producer_epoch=1)):
        request = produce({ORDERS_0: in_transaction(), ORDERS_1: other}, transactional_id="tx")
        assert errors(ask(apis(replicas), request, 7)) == {
            ORDERS_0: Errors.INVALID_PRODUCER_ID_MAPPING,
            ORDERS_1: Errors.INVALID_PRODUCER_ID_MAPPING,
        }


def test_a_transactional_producer_may_send_records_outside_of_a_transaction():
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_0: WRITTEN}
    request = produce({ORDERS_0: batch(b"a")}, transactional_id="tx")
    assert errors(ask(apis(replicas), request, 7)) == {ORDERS_0: Errors.NONE}


@pytest.mark.parametrize("guard", [0, 3])
def test_the_first_batch_of_a_transaction_is_appended_after_its_verification(guard: int):
    replicas, verifier = CannedReplicas(), CannedVerifier()
    replicas.produced = {ORDERS_0: WRITTEN, ORDERS_1: WRITTEN}
    replicas.guards = {ORDERS_0: guard}
    request = produce({ORDERS_0: in_transaction(), ORDERS_1: batch(b"b")}, transactional_id="tx")
    answer = ask(apis(replicas, verifier), request, 7)
    assert errors(answer) == {ORDERS_0: Errors.NONE, ORDERS_1: Errors.NONE}
    asked = [TransactionToVerify("tx", PRODUCER_ID, 0, (ORDERS_0,))]
    assert verifier.asked == (asked if guard else [])
    assert replicas.guards_used == {ORDERS_0: guard}


@pytest.mark.parametrize("is_led", [True, False])
def test_a_batch_of_a_partition_that_is_not_led_goes_on_as_one_that_nobody_verified(is_led: bool):
    """The broker may lead the partition when the answer about the others arrives."""
    replicas, verifier = CannedReplicas(), CannedVerifier()
    replicas.produced = {ORDERS_1: ProducedPartition(Errors.NOT_LEADER_OR_FOLLOWER)}
    replicas.guards = {ORDERS_0: 3 if is_led else NOT_VERIFIED, ORDERS_1: NOT_VERIFIED}
    request = produce(
        {ORDERS_0: in_transaction(), ORDERS_1: in_transaction()}, transactional_id="tx"
    )
    answer = ask(apis(replicas, verifier), request, 7)
    assert errors(answer)[ORDERS_1] is Errors.NOT_LEADER_OR_FOLLOWER
    assert [asked.partitions for asked in verifier.asked] == ([(ORDERS_0,)] if is_led else [])
    assert replicas.guards_used == replicas.guards


@pytest.mark.parametrize(
    ("error", "version", "answered"),
    [
        (Errors.TRANSACTION_ABORTABLE, 10, Errors.INVALID_TXN_STATE),
        (Errors.TRANSACTION_ABORTABLE, 11, Errors.TRANSACTION_ABORTABLE),
        (Errors.CONCURRENT_TRANSACTIONS, 11, Errors.NOT_ENOUGH_REPLICAS),
        (Errors.NETWORK_EXCEPTION, 3, Errors.NOT_ENOUGH_REPLICAS),
        (Errors.NOT_COORDINATOR, 11, Errors.NOT_ENOUGH_REPLICAS),
        (Errors.COORDINATOR_LOAD_IN_PROGRESS, 11, Errors.NOT_ENOUGH_REPLICAS),
        (Errors.COORDINATOR_NOT_AVAILABLE, 11, Errors.NOT_ENOUGH_REPLICAS),
        (Errors.INVALID_PRODUCER_EPOCH, 11, Errors.INVALID_PRODUCER_EPOCH),
        (Errors.INVALID_PRODUCER_ID_MAPPING, 11, Errors.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_records_that_are_not_known_to_be_in_the_transaction_are_not_appended(
    error: Errors, version: int, answered: Errors
):
    replicas, verifier = CannedReplicas(), CannedVerifier({ORDERS_0: error})
    replicas.guards = {ORDERS_0: 1, ORDERS_1: 2}
    replicas.produced = {ORDERS_1: WRITTEN}
    request = produce(
        {ORDERS_0: in_transaction(), ORDERS_1: in_transaction()}, transactional_id="tx"
    )
    answer = ask(apis(replicas, verifier), request, version)
    assert errors(answer) == {ORDERS_0: answered, ORDERS_1: Errors.NONE}
    assert list(replicas.records) == [ORDERS_1]


@pytest.mark.parametrize("records", [None, b"", batch(b"a")[:60], batch(b"a") + batch(b"b")])
def test_a_partition_without_exactly_one_batch_is_refused_and_others_are_written(
    records: bytes | None,
):
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_1: WRITTEN}
    request = produce({ORDERS_0: records, ORDERS_1: batch(b"b")})

    answer = ask(apis(replicas), request, 8)

    assert errors(answer) == {ORDERS_0: Errors.INVALID_RECORD, ORDERS_1: Errors.NONE}
    assert list(replicas.records) == [ORDERS_1]


@pytest.mark.parametrize(
    ("version", "error"), [(6, Errors.UNSUPPORTED_COMPRESSION_TYPE), (7, Errors.NONE)]
)
def test_zstd_needs_version_7(version: int, error: Errors):
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_0: WRITTEN}
    request = produce({ORDERS_0: zstandard(b"a")})
    assert errors(ask(apis(replicas), request, version)) == {ORDERS_0: error}


def test_unreadable_records_are_refused():
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_1: WRITTEN}
    garbage = resealed(batch(b"a")[:-3] + b"???")
    answer = ask(apis(replicas), produce({ORDERS_0: garbage, ORDERS_1: batch(b"b")}), 8)
    assert errors(answer) == {ORDERS_0: Errors.INVALID_RECORD, ORDERS_1: Errors.NONE}
    assert list(replicas.records) == [ORDERS_1]


@pytest.mark.parametrize("count", [2, 2_000])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_compacted_topic_refuses_records_without_a_key(version: int, count: int):
    replicas = CannedReplicas()
    replicas.rules = dict.fromkeys(
        (ORDERS_0, ORDERS_1), RecordRules(needs_keys=True, log_start_offset=3)
    )
    replicas.produced = {ORDERS_1: WRITTEN}
    records = {
        ORDERS_0: batch(*[b"a"] * count),
        ORDERS_1: batch(*[b"b"] * count, key=b"key"),
    }
    answer = ask(apis(replicas), produce(dict(records)), version)
    assert errors(answer) == {ORDERS_0: Errors.INVALID_RECORD, ORDERS_1: Errors.NONE}
    refused = outcomes(answer)[ORDERS_0]
    assert (refused.base_offset, refused.log_append_time_ms) == (-1, -1)
    if version >= 5:
        assert refused.log_start_offset == 3
    if version >= 8:
        assert [error.batch_index for error in refused.record_errors] == list(range(count))
        assert {error.batch_index_error_message for error in refused.record_errors} == {
            "Compacted topic cannot accept message without key in topic partition orders-0"
        }
        assert refused.error_message.startswith(
            f"One or more records have been rejected due to {count} record errors in total, and"
            " only showing the first three errors at most: [RecordError(batchIndex=0, message="
            "'Compacted topic cannot accept message without key in topic partition orders-0'), "
        )
        assert not outcomes(answer)[ORDERS_1].record_errors


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_a_record_that_is_too_old_or_too_new_is_named(codec: int):
    now_ms = time.time_ns() // 1_000_000
    replicas = CannedReplicas()
    replicas.rules = {ORDERS_0: RecordRules(False, 60_000, 10_000, 3)}
    old = keyed_batch(
        *[(None, b"a")] * 3,
        timestamp_ms=now_ms,
        time_step_ms=-1_000_000,
        attributes=codec,
        compress=zstd_compressed if codec else bytes,
    )
    refused = outcomes(ask(apis(replicas), produce({ORDERS_0: old}), 9))[ORDERS_0]
    assert refused.error_code == Errors.INVALID_TIMESTAMP
    assert refused.log_start_offset == 3
    assert [error.batch_index for error in refused.record_errors] == [1, 2]
    assert refused.error_message == (
        "One or more records have been rejected due to invalid timestamp"
    )
    assert refused.record_errors[0].batch_index_error_message.startswith(
        f"Timestamp {now_ms - 1_000_000} of message with offset 1 is out of range. The timestamp"
        " should be within ["
    )


# --- old message formats --------------------------------------------------------------------------


def old_set(magic: int, *values: bytes, codec: int = 0, key: bytes | None = None) -> bytes:
    """Return a message set."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1_000_000)
    for number, value in enumerate(values):
        builder.append(number, 5, key, value)
    return bytes(builder.build())


@pytest.mark.parametrize("version", OLD_VERSIONS)
@pytest.mark.parametrize("codec", [0, 1])
def test_records_of_old_formats_are_appended_as_batches(version: int, codec: int):
    replicas = CannedReplicas()
    magic = 1 if version == 2 else 0
    records = {
        ORDERS_0: old_set(magic, b"a", b"b", codec=codec),
        ORDERS_1: old_set(1 - magic, b"c"),
        TEA_0: batch(b"d"),
    }
    replicas.produced = dict.fromkeys(records, WRITTEN)

    answer = ask(apis(replicas), produce(dict(records)), version)

    assert errors(answer) == dict.fromkeys(records, Errors.NONE)
    for partition in outcomes(answer).values():
        assert partition.base_offset == 7
        assert partition.log_append_time_ms == (99 if version == 2 else -1)
    appended = [
        [record.value for record in DefaultRecordBatch(bytearray(data))]
        for data in replicas.records.values()
    ]
    assert appended == [[b"a", b"b"], [b"c"], [b"d"]]


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_records_of_old_formats_that_cannot_be_converted_are_refused(version: int):
    replicas = CannedReplicas()
    replicas.rules = {TEA_0: RecordRules(needs_keys=True)}
    replicas.produced = {ORDERS_1: WRITTEN}
    records = {
        ORDERS_0: old_set(1, b"a")[:-1],
        ORDERS_1: old_set(0, b"b"),
        TEA_0: old_set(1, b"without a key"),
    }
    answer = ask(apis(replicas), produce(dict(records)), version)
    assert errors(answer) == {
        ORDERS_0: Errors.CORRUPT_MESSAGE,
        ORDERS_1: Errors.NONE,
        TEA_0: Errors.INVALID_RECORD,
    }
    assert list(replicas.records) == [ORDERS_1]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("magic", [0, 1])
def test_newer_versions_bring_no_old_formats(version: int, magic: int):
    request = produce({ORDERS_0: old_set(magic, b"a" * 100)})
    answer = ask(apis(CannedReplicas()), request, version)
    assert errors(answer) == {ORDERS_0: Errors.INVALID_RECORD}


# --- the order of requests ------------------------------------------------------------------------


class InOrder(CannedReplicas):
    """Remembers which partitions were appended to together, in sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[list[TopicPartition]] = []

    def produce(self, acks: int, records: Any, *rest: Any) -> Any:
        self.appended.append(list(records))
        return super().produce(acks, records, *rest)


def test_a_slow_check_delays_only_later_requests_for_its_partitions():
    replicas = InOrder()
    (api,) = apis(replicas)
    slow, quick = batch(*[b"a"] * 5_000), batch(b"b")

    async def send(*topic_partitions: TopicPartition, data: bytes) -> None:
        body = bytearray(produce(dict.fromkeys(topic_partitions, data)).encode(version=7))
        await api.handle(KafkaRequest(api.key, 7, 1, None, Session(""), memoryview(body)))

    async def main() -> None:
        await asyncio.gather(
            send(ORDERS_0, data=slow), send(ORDERS_0, ORDERS_1, data=quick), send(TEA_0, data=quick)
        )

    asyncio.run(main())
    assert replicas.appended == [[TEA_0], [ORDERS_0], [ORDERS_0, ORDERS_1]]


def test_a_slow_check_delays_no_other_connection():
    replicas = InOrder()
    (api,) = apis(replicas)

    async def send(connection: int, data: bytes) -> None:
        body = bytearray(produce({ORDERS_0: data}).encode(version=7))
        request = KafkaRequest(
            api.key, 7, 1, None, Session(""), memoryview(body), connection=connection
        )
        await api.handle(request)
        answered.append(connection)

    async def main() -> None:
        EXECUTOR.submit(may_check.wait)
        slow = asyncio.ensure_future(send(1, batch(*[b"a"] * 5_000)))
        await asyncio.sleep(0)
        await send(2, batch(b"b"))
        may_check.set()
        await slow

    answered: list[int] = []
    may_check = threading.Event()
    asyncio.run(main())
    assert answered == [2, 1]


@pytest.mark.parametrize(("magic", "version"), [(2, 7), (1, 2)])
def test_large_batches_are_checked_by_a_thread_of_their_own(magic: int, version: int):
    replicas = CannedReplicas()
    replicas.produced = {ORDERS_0: WRITTEN}
    value = bytes(compression.SMALL_BYTES + 1)
    data = zstandard(value) if magic == 2 else old_set(1, value, codec=1)
    with ThreadPoolExecutor(1) as checker, ThreadPoolExecutor(1) as unpacker:
        large = produce_apis(replicas, cached(), EXECUTOR, large_batches=(checker, unpacker))
        assert errors(ask(large, produce({ORDERS_0: data}), version)) == {ORDERS_0: Errors.NONE}
        wrong = keyed_batch(
            (None, value), attributes=ZSTD, compress=lambda records: zstd_compressed(records)[:-1]
        )
        refused = ask(large, produce({ORDERS_0: wrong}), 7)
    assert errors(refused) == {ORDERS_0: Errors.INVALID_RECORD}


@pytest.mark.parametrize(("acks", "is_appended"), [(0, True), (1, False)])
@pytest.mark.parametrize("has_earlier", [False, True])
def test_records_of_a_client_that_has_left_are_appended_if_it_waits_for_no_answer(
    acks: int, is_appended: bool, has_earlier: bool
):
    replicas = InOrder()
    replicas.produced = {ORDERS_0: WRITTEN}
    (api,) = apis(replicas)
    may_check = threading.Event()

    def sending(acks: int, version: int) -> asyncio.Task[KafkaAnswer]:
        body = produce({ORDERS_0: old_set(0, b"a")}, acks=acks).encode(version=version)
        request = KafkaRequest(api.key, version, 1, None, Session(""), memoryview(bytearray(body)))

        async def handle() -> KafkaAnswer:
            return await api.handle(request)

        return asyncio.ensure_future(handle())

    async def main() -> None:
        EXECUTOR.submit(may_check.wait)
        others = [sending(1, 1)] if has_earlier else []
        left = sending(acks, 1)
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        may_check.set()
        await asyncio.wait([left, *others])
        assert left.cancelled() is not is_appended

    asyncio.run(main())
    assert len(replicas.appended) == is_appended + has_earlier


def test_a_partition_listed_twice_is_malformed():
    topic_type = ProduceRequest.TopicProduceData
    partition = topic_type.PartitionProduceData(index=0, records=batch(b"a"))
    topic = topic_type(name="orders", partition_data=[partition])
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic, topic])
    with pytest.raises(MalformedRequestError):
        call(apis(CannedReplicas()), request, 7)
