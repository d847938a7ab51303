"""What brokers ask of a controller, in the bytes of Kafka 3.9.1's own classes.

``recorded_controller_messages.txt`` has a message, a version and the bytes in a line. Kafka's
``MessageUtil.toByteBuffer`` made them of the values that are here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from regent.core.protocol.messages.controller import (
    AllocateProducerIdsRequestData,
    AllocateProducerIdsResponseData,
    AlteredPartitionData,
    AlteredTopicData,
    AlterPartitionRequestData,
    AlterPartitionResponseData,
    ControlledShutdownRequestData,
    ControlledShutdownResponseData,
    IsrMember,
    PartitionData,
    RemainingPartition,
    TopicData,
)
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.message_codec import decoded, encoded
from tests.support.kafka_versions import BETWEEN_BROKERS
from tests.transport.kafka.test_control_messages import TOPIC_ID, of_version

RECORDED = Path(__file__).with_name("recorded_controller_messages.txt")
EPOCH = 9_000_000_000
KEYS = {
    "ControlledShutdown": KafkaApiKey.CONTROLLED_SHUTDOWN,
    "AlterPartition": KafkaApiKey.ALTER_PARTITION,
    "AllocateProducerIds": KafkaApiKey.ALLOCATE_PRODUCER_IDS,
}
VALUES = {
    type(value).__name__.removesuffix("Data"): value
    for value in (
        ControlledShutdownRequestData(broker_id=7, broker_epoch=EPOCH),
        ControlledShutdownResponseData(
            error_code=77,
            remaining_partitions=(RemainingPartition(topic_name="orders", partition_index=3),),
        ),
        AlterPartitionRequestData(
            broker_id=7,
            broker_epoch=EPOCH,
            topics=(
                TopicData(
                    topic_name="orders",
                    topic_id=TOPIC_ID,
                    partitions=(
                        PartitionData(
                            partition_index=3,
                            leader_epoch=5,
                            new_isr=(1, 2),
                            new_isr_with_epochs=(
                                IsrMember(broker_id=1, broker_epoch=EPOCH + 1),
                                IsrMember(broker_id=2),
                            ),
                            leader_recovery_state=1,
                            partition_epoch=6,
                        ),
                    ),
                ),
            ),
        ),
        AlterPartitionResponseData(
            throttle_time_ms=8,
            error_code=77,
            topics=(
                AlteredTopicData(
                    topic_name="orders",
                    topic_id=TOPIC_ID,
                    partitions=(
                        AlteredPartitionData(
                            partition_index=3,
                            error_code=0,
                            leader_id=1,
                            leader_epoch=5,
                            isr=(1, 2),
                            leader_recovery_state=1,
                            partition_epoch=7,
                        ),
                        AlteredPartitionData(partition_index=4, error_code=107),
                    ),
                ),
            ),
        ),
        AllocateProducerIdsRequestData(broker_id=7, broker_epoch=EPOCH),
        AllocateProducerIdsResponseData(
            throttle_time_ms=8, error_code=77, producer_id_start=EPOCH, producer_id_len=1_000
        ),
    )
}


def recordings() -> list[tuple[str, int, bytes]]:
    lines = (line.split() for line in RECORDED.read_text().splitlines())
    return [(name, int(version), bytes.fromhex(body)) for name, version, body in lines]


def key_of(name: str) -> KafkaApiKey:
    return KEYS[name.removesuffix("Request").removesuffix("Response")]


@pytest.mark.parametrize(("name", "version", "body"), recordings())
def test_a_message_has_the_bytes_of_kafkas_own(name: str, version: int, body: bytes):
    is_flexible = version >= FIRST_FLEXIBLE_VERSION[key_of(name)]
    value = VALUES[name]
    assert encoded(value, version, is_flexible=is_flexible) == body
    read = decoded(type(value), memoryview(body), version, is_flexible=is_flexible)
    assert read == of_version(value, version)


def test_all_versions_of_kafka_are_recorded():
    versions: dict[KafkaApiKey, set[int]] = {}
    for name, version, _ in recordings():
        versions.setdefault(key_of(name), set()).add(version)
    assert versions == {
        key: set(range(first, last + 1))
        for key, (first, last) in BETWEEN_BROKERS.items()
        if key in versions
    }
    assert {*VALUES} == {name for name, *_ in recordings()}
