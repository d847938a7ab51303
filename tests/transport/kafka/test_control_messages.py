"""LeaderAndIsr, StopReplica and UpdateMetadata in the bytes of Kafka 3.9.1's own classes.

``recorded_control_messages.txt`` has a message, a version and the bytes in a line. Kafka's
``MessageUtil.toByteBuffer`` made them of the values that are here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from regent.core.protocol.messages import control
from regent.core.protocol.messages.control import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    StopReplicaTopicV1,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.message_codec import decoded, encoded

RECORDED = Path(__file__).with_name("recorded_control_messages.txt")
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAA_w"
EPOCHS = {"controller_id": 7, "controller_epoch": 8, "broker_epoch": 9_000_000_000}
KEYS = {
    "LeaderAndIsr": KafkaApiKey.LEADER_AND_ISR,
    "StopReplica": KafkaApiKey.STOP_REPLICA,
    "UpdateMetadata": KafkaApiKey.UPDATE_METADATA,
}

LEADER_AND_ISR = LeaderAndIsrRequest(
    **EPOCHS,
    is_k_raft_controller=True,
    type=1,
    topic_states=(
        LeaderAndIsrTopicState(
            topic_name="orders",
            topic_id=TOPIC_ID,
            partition_states=(
                LeaderAndIsrPartitionState(
                    partition_index=3,
                    controller_epoch=4,
                    leader=1,
                    leader_epoch=5,
                    isr=(1, 2),
                    partition_epoch=6,
                    replicas=(1, 2, 3),
                    adding_replicas=(3,),
                    removing_replicas=(2,),
                    is_new=True,
                    leader_recovery_state=1,
                ),
            ),
        ),
    ),
    live_leaders=(LeaderAndIsrLiveLeader(broker_id=1, host_name="localhost", port=9092),),
)
STOP_REPLICA = StopReplicaRequest(
    **EPOCHS,
    is_k_raft_controller=True,
    delete_partitions=True,
    topics=(StopReplicaTopicV1(name="orders", partition_indexes=(3, 4)),),
    topic_states=(
        StopReplicaTopicState(
            topic_name="orders",
            partition_states=(
                StopReplicaPartitionState(
                    partition_index=3, leader_epoch=-2, delete_partition=True
                ),
                StopReplicaPartitionState(
                    partition_index=4, leader_epoch=5, delete_partition=False
                ),
            ),
        ),
    ),
)
UPDATE_METADATA = UpdateMetadataRequest(
    **EPOCHS,
    is_k_raft_controller=True,
    type=2,
    topic_states=(
        UpdateMetadataTopicState(
            topic_name="orders",
            topic_id=TOPIC_ID,
            partition_states=(
                UpdateMetadataPartitionState(
                    partition_index=3,
                    controller_epoch=4,
                    leader=-2,
                    leader_epoch=5,
                    isr=(1, 2),
                    zk_version=6,
                    replicas=(1, 2, 3),
                    offline_replicas=(3,),
                ),
            ),
        ),
    ),
    live_brokers=(
        UpdateMetadataBroker(
            id=1,
            endpoints=(
                UpdateMetadataEndpoint(
                    port=9092, host="localhost", listener="PLAINTEXT", security_protocol=0
                ),
                UpdateMetadataEndpoint(
                    port=9094, host="::1", listener="BROKERS", security_protocol=3
                ),
            ),
            rack="east",
        ),
        UpdateMetadataBroker(id=2, endpoints=(), rack=None),
    ),
)
LEADER_AND_ISR_ANSWER = LeaderAndIsrResponse(
    error_code=11,
    partition_errors=(
        LeaderAndIsrPartitionError(topic_name="orders", partition_index=3, error_code=56),
    ),
    topics=(
        LeaderAndIsrTopicError(
            topic_id=TOPIC_ID,
            partition_errors=(
                LeaderAndIsrPartitionError(topic_name="orders", partition_index=3, error_code=56),
            ),
        ),
    ),
)
STOP_REPLICA_ANSWER = StopReplicaResponse(
    error_code=11,
    partition_errors=(
        StopReplicaPartitionError(topic_name="orders", partition_index=3, error_code=74),
    ),
)
VALUES = {
    type(value).__name__: value
    for value in (
        *(LEADER_AND_ISR, LEADER_AND_ISR_ANSWER, STOP_REPLICA, STOP_REPLICA_ANSWER),
        *(UPDATE_METADATA, UpdateMetadataResponse(error_code=77)),
    )
}


def recordings() -> list[tuple[str, int, bytes]]:
    lines = (line.split() for line in RECORDED.read_text().splitlines())
    return [(name, int(version), bytes.fromhex(body)) for name, version, body in lines]


def of_version(value: Any, version: int) -> Any:
    """Return a message with the defaults in the fields that a version does not have."""
    if isinstance(value, tuple):
        return tuple(of_version(row, version) for row in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for field in dataclasses.fields(value):
        first = field.metadata.get("first version", 0)
        is_there = first <= version <= field.metadata.get("last version", version)
        own = getattr(value, field.name)
        changes[field.name] = of_version(own, version) if is_there else field.default
    return dataclasses.replace(value, **changes)


@pytest.mark.parametrize(("name", "version", "body"), recordings())
def test_a_control_message_has_the_bytes_of_kafkas_own(name: str, version: int, body: bytes):
    key = KEYS[name.removesuffix("Request").removesuffix("Response")]
    is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
    assert encoded(VALUES[name], version, is_flexible=is_flexible) == body
    read = decoded(type(VALUES[name]), memoryview(body), version, is_flexible=is_flexible)
    assert read == of_version(VALUES[name], version)


def test_all_declared_versions_are_recorded():
    recorded = {(name, version) for name, version, _ in recordings()}
    assert recorded == {
        (name, version)
        for kind, first in control.FIRST_VERSIONS.items()
        for version in range(first, control.LAST_VERSIONS[kind] + 1)
        for name in (kind.__name__, kind.__name__.replace("Request", "Response"))
    }
