"""Whatever number a znode has, what is decoded fits Kafka's protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from regent.core.errors import BadDataError
from regent.core.model import (
    MAX_LEADER_EPOCH,
    BrokerInfo,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.zk import znodes
from regent.zk.codecs import admin_znodes
from regent.zk.stores.znode_store import broker_ids_of

INT32, INT64 = 2**31 - 1, 2**63 - 1
TOO_LARGE = (2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**31) - 1, -(2**63), 1e300, 1.5, True)
PARTITIONS = (TopicPartition("t", 3),)

CODECS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "controller": (znodes.ControllerZNode.encode(1, 2), znodes.ControllerZNode.decode),
    "registration": (
        znodes.BrokerIdZNode.encode(
            BrokerInfo(1, (EndPoint("PLAINTEXT", "h", 9092),), features={"f": (1, 2)}, jmx_port=7)
        ),
        lambda data: znodes.BrokerIdZNode.decode(data, 1),
    ),
    "registration of version 1": (
        orjson.dumps({"version": 1, "host": "h", "port": 9092, "jmx_port": 1}),
        lambda data: znodes.BrokerIdZNode.decode(data, 1),
    ),
    "topic": (
        znodes.TopicZNode.encode(None, {7: ReplicaAssignment((1, 2, 3), (3,), (1,))}),
        znodes.TopicZNode.decode,
    ),
    "state": (
        znodes.TopicPartitionStateZNode.encode(
            LeaderIsrAndControllerEpoch(
                LeaderAndIsr(1, (1, 2), 5, eligible_leader_replicas=(3,)), 7
            )
        ),
        lambda data: znodes.TopicPartitionStateZNode.decode(data, 0),
    ),
    "producer ids": (
        znodes.ProducerIdBlockZNode.encode(admin_znodes.ProducerIdBlock(1, 0, 999)),
        znodes.ProducerIdBlockZNode.decode,
    ),
    "preferred elections": (
        znodes.PreferredReplicaElectionZNode.encode(PARTITIONS),
        znodes.PreferredReplicaElectionZNode.decode,
    ),
    "reassignments": (
        znodes.ReassignPartitionsZNode.encode({PARTITIONS[0]: (1, 2)}),
        znodes.ReassignPartitionsZNode.decode,
    ),
    "ISR changes": (
        znodes.IsrChangeNotificationSequenceZNode.encode(PARTITIONS),
        znodes.IsrChangeNotificationSequenceZNode.decode,
    ),
}


def with_each_number(value: Any, number: Any) -> Iterator[Any]:
    """Yield JSON in which one number, or one key that is a number, is replaced."""
    if type(value) is dict:
        for key in value:
            if key.isdecimal():
                yield {**{k: v for k, v in value.items() if k != key}, str(number): value[key]}
            for inner in with_each_number(value[key], number):
                yield {**value, key: inner}
    elif type(value) is list:
        for place, element in enumerate(value):
            for inner in with_each_number(element, number):
                yield [*value[:place], inner, *value[place + 1 :]]
    elif type(value) is int:
        yield number
    elif type(value) is str and value.lstrip("-").isdecimal():
        yield str(number)


def numbers_in(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield int(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from numbers_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for pair in value.items():
            yield from numbers_in(pair)
    elif isinstance(value, tuple | list | frozenset):
        for element in value:
            yield from numbers_in(element)


@pytest.mark.parametrize("number", TOO_LARGE)
@pytest.mark.parametrize("name", CODECS)
def test_a_number_out_of_range_is_refused_or_ignored(name: str, number: float) -> None:
    data, decode = CODECS[name]
    largest = INT64 if name in ("producer ids", "registration") else INT32
    assert max(numbers_in(decode(data))) <= largest
    for changed in with_each_number(orjson.loads(data), number):
        try:
            encoded = orjson.dumps(changed)
        except TypeError:
            continue  # JSON has no integers of more than 64 bits
        try:
            decoded = decode(encoded)
        except BadDataError:
            continue
        assert all(-(2**31) <= n <= largest for n in numbers_in(decoded)), changed


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**31, 2**63 - 1])
def test_after_the_leader_epoch_of_a_state_there_is_another_one(epoch: int) -> None:
    def decode(leader_epoch: int) -> LeaderIsrAndControllerEpoch:
        state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (1,), leader_epoch), 7)
        data = znodes.TopicPartitionStateZNode.encode(state)
        return znodes.TopicPartitionStateZNode.decode(data, 0)

    assert decode(MAX_LEADER_EPOCH).leader_and_isr.leader_epoch == MAX_LEADER_EPOCH < 2**31 - 1
    with pytest.raises(BadDataError, match="leader_epoch"):
        decode(epoch)
    with pytest.raises(BadDataError, match="leader-epoch-checkpoint"):
        decode(2**31 - 1)


@pytest.mark.parametrize(
    "text", ["2147483648", "4294967296", "9" * 30, "-1", "1.0", "07", "", "٣", "1e3"]
)
def test_a_controller_epoch_and_a_broker_id_are_int32(text: str) -> None:
    with pytest.raises(BadDataError):
        znodes.ControllerEpochZNode.decode(text.encode())
    assert list(broker_ids_of([text])) == []


@pytest.mark.parametrize("key", ["rack", "host", "control_endpoint", "replication_endpoint"])
def test_a_string_of_a_registration_fits_the_length_of_the_wire(key: str) -> None:
    data, decode = CODECS["registration"]
    registration = orjson.loads(data)
    registration[key] = "x" * 40_000
    with pytest.raises(BadDataError):
        decode(orjson.dumps(registration))
