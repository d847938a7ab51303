"""Records that a broker of Kafka 3.9.1 wrote to the topics of its coordinators."""

from __future__ import annotations

import pytest

from regent.core.coordinator.group.group_records import (
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_key,
    encode_value,
)
from regent.core.coordinator.transaction.transaction_metadata import TransactionState
from regent.core.coordinator.transaction.transaction_records import (
    StoredTransaction,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from regent.core.model import TopicPartition
from regent.core.protocol.groups import OffsetAndMetadata

OFFSET_KEY = "00010009612e672d706c61696e0008612e6576656e747300000001"
OFFSETS = {
    "00030000000000000003000000000005706c61696e000001a2148e39c6": OffsetAndMetadata(
        3, 0, "plain", 1795641194950
    ),
    "0003000000000000000bffffffff0000000001a2148e39c6": OffsetAndMetadata(
        11, -1, "", 1795641194950
    ),
}

MEMBER = "consumer-a.g-live-2-ce2eedfa-a745-4839-92ce-79f89b4e2ffd"
GROUP = (
    "00030008636f6e73756d657200000001000572616e6765"
    "0038636f6e73756d65722d612e672d6c6976652d322d63653265656466612d613734352d34383339"
    "2d393263652d373966383962346532666664000001a2148e3a0400000001"
    "0038636f6e73756d65722d612e672d6c6976652d322d63653265656466612d613734352d34383339"
    "2d393263652d373966383962346532666664ffff0013636f6e73756d65722d612e672d6c6976652d32"
    "000a2f3132372e302e302e31000493e00000afc8"
    "0000001c0003000000010006612e6964656dffffffff00000000ffffffffffff"
    "0000001a0003000000010006612e6964656d0000000100000000ffffffff"
)

TRANSACTION_KEY = "00000008612e742d6b656570"
TRANSACTIONS = {
    "000000000000000000010000000927c000ffffffff000001a2148e3ab7ffffffffffffffff": (
        StoredTransaction(1, 0, 600_000, TransactionState.EMPTY, None, 1795641195191, -1)
    ),
    "000000000000000000010000000927c0010000000200125f5f636f6e73756d65725f6f66667365747300000001"
    "000000070008612e6576656e7473000000030000000200000001000000000000"
    "01a2148e3adc000001a2148e3ac2": (
        StoredTransaction(
            1,
            0,
            600_000,
            TransactionState.ONGOING,
            (("__consumer_offsets", (7,)), ("a.events", (2, 1, 0))),
            1795641195228,
            1795641195202,
        )
    ),
    "0000000000000000000000000000ea600500000000000001a2148e1e1f000001a2148e1df0": (
        StoredTransaction(
            0, 0, 60_000, TransactionState.COMPLETE_ABORT, (), 1795641187871, 1795641187824
        )
    ),
}


@pytest.mark.parametrize(("written", "value"), OFFSETS.items())
def test_a_position_is_read_and_written_as_kafka_wrote_it(written: str, value: OffsetAndMetadata):
    key = OffsetKey("a.g-plain", TopicPartition("a.events", 1))
    assert decode_key(bytes.fromhex(OFFSET_KEY)) == key
    assert encode_key(key).hex() == OFFSET_KEY
    assert decode_offset(bytes.fromhex(written)) == value
    assert (encode_value(value) or b"").hex() == written


def test_a_group_is_read_and_written_as_kafka_wrote_it():
    key = "00020008612e672d6c697665"
    assert decode_key(bytes.fromhex(key)) == GroupKey("a.g-live")
    assert encode_key(GroupKey("a.g-live")).hex() == key
    group = decode_group(bytes.fromhex(GROUP))
    member = group.members[0]
    assert group == StoredGroup("consumer", 1, "range", MEMBER, 1795641195012, (member,))
    assert member == StoredMember(
        MEMBER,
        None,
        "consumer-a.g-live-2",
        "/127.0.0.1",
        300_000,
        45_000,
        bytes.fromhex("0003000000010006612e6964656dffffffff00000000ffffffffffff"),
        bytes.fromhex("0003000000010006612e6964656d0000000100000000ffffffff"),
    )
    assert (encode_value(group) or b"").hex() == GROUP


@pytest.mark.parametrize(("written", "value"), TRANSACTIONS.items())
def test_a_transaction_is_read_and_written_as_kafka_wrote_it(
    written: str, value: StoredTransaction
):
    assert decode_transaction_key(bytes.fromhex(TRANSACTION_KEY)) == "a.t-keep"
    assert encode_transaction_key("a.t-keep").hex() == TRANSACTION_KEY
    assert decode_transaction(bytes.fromhex(written)) == value
    assert encode_transaction(value).hex() == written
