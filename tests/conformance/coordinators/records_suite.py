"""The suite ``records``: records of the internal topics as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from regent.core.coordinator.group.group_records import (
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
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
from regent.records.end_transaction_marker import (
    EndTransactionMarker,
    decode_coordinator_epoch,
    decode_marker_type,
)
from regent.storage.log.transaction_index import AbortedTransaction, decode_aborted_transaction
from tests.conformance.coordinators.suite import ReadMapping, Step, Suite
from tests.conformance.fields import UnknownInCaseError, WholeMap


def _key(fields: Mapping[str, Any], version: int) -> bytes:
    if "topic" in fields:
        topic_partition = TopicPartition(fields["topic"], fields["partition"])
        return encode_key(OffsetKey(fields["group"], topic_partition))
    return encode_key(GroupKey(fields["group"]))


def _offset(fields: Mapping[str, Any], version: int) -> bytes:
    return encode_offset(
        OffsetAndMetadata(
            fields["offset"],
            fields.get("leader_epoch", -1),
            fields["metadata"],
            fields["commit_time"],
            fields.get("expire_time", -1),
        ),
        version,
    )


def _group(fields: Mapping[str, Any], version: int) -> bytes:
    return encode_group(
        StoredGroup(
            fields["type"],
            fields["generation"],
            fields["protocol"],
            fields["leader"],
            fields.get("timestamp", -1),
            tuple(
                StoredMember(
                    member["id"],
                    member.get("instance"),
                    member["client"],
                    member["host"],
                    member.get("rebalance", member["session"]),
                    member["session"],
                    bytes.fromhex(member["subscription"]),
                    bytes.fromhex(member["assignment"]),
                )
                for member in fields["members"]
            ),
        ),
        version,
    )


def _key_fields(data: bytes, version: int) -> Mapping[str, Any]:
    key = decode_key(data)
    assert key is not None
    if isinstance(key, GroupKey):
        return {"group": key.group_id}
    topic, partition = key.topic_partition
    return {"group": key.group_id, "topic": topic, "partition": partition}


def _offset_fields(data: bytes, version: int) -> Mapping[str, Any]:
    value = decode_offset(data)
    fields: dict[str, Any] = {
        "offset": value.offset,
        "metadata": value.metadata,
        "commit_time": value.commit_timestamp_ms,
    }
    if version >= 3:
        fields["leader_epoch"] = value.leader_epoch
    if version == 1:
        fields["expire_time"] = value.expire_timestamp_ms
    return fields


def _group_fields(data: bytes, version: int) -> Mapping[str, Any]:
    value = decode_group(data)
    fields: dict[str, Any] = {
        "type": value.protocol_type,
        "generation": value.generation_id,
        "protocol": value.protocol_name,
        "leader": value.leader_id,
    }
    if version >= 2:
        fields["timestamp"] = value.state_timestamp_ms
    fields["members"] = []
    for member in value.members:
        row: dict[str, Any] = {
            "id": member.member_id,
            "client": member.client_id,
            "host": member.client_host,
            "session": member.session_timeout_ms,
            "subscription": member.subscription.hex(),
            "assignment": member.assignment.hex(),
        }
        if version >= 1:
            row["rebalance"] = member.rebalance_timeout_ms
        if version >= 3:
            row["instance"] = member.group_instance_id
        fields["members"].append(row)
    return fields


_STATES = tuple(TransactionState)


def _transaction(fields: Mapping[str, Any], version: int) -> bytes:
    partitions = fields["partitions"]
    return encode_transaction(
        StoredTransaction(
            fields["producer"],
            fields["epoch"],
            fields["timeout"],
            _STATES[fields["state"]],
            None
            if partitions is None
            else tuple((topic, tuple(rows)) for topic, rows in partitions),
            fields["update"],
            fields["start"],
        )
    )


def _transaction_fields(data: bytes, version: int) -> Mapping[str, Any]:
    value = decode_transaction(data)
    partitions = value.partitions
    return {
        "producer": value.producer_id,
        "epoch": value.producer_epoch,
        "timeout": value.txn_timeout_ms,
        "state": _STATES.index(value.state),
        "partitions": None
        if partitions is None
        else [[topic, list(rows)] for topic, rows in partitions],
        "update": value.txn_last_update_timestamp_ms,
        "start": value.txn_start_timestamp_ms,
    }


def _aborted(fields: Mapping[str, Any], version: int) -> bytes:
    first, last = fields["first"], fields["last"]
    return AbortedTransaction(fields["producer"], first, last, fields["stable"]).encode()


def _aborted_fields(data: bytes, version: int) -> Mapping[str, Any]:
    producer, first, last, stable = decode_aborted_transaction(data)
    return {"producer": producer, "first": first, "last": last, "stable": stable}


ENCODERS: Mapping[str, Callable[[Mapping[str, Any], int], bytes]] = {
    "offset_key": _key,
    "group_key": _key,
    "offset_value": _offset,
    "group_value": _group,
    "txn_key": lambda fields, _: encode_transaction_key(fields["id"]),
    "txn_value": _transaction,
    "marker_key": lambda fields, _: EndTransactionMarker(fields["commit"], 0).key(),
    "marker_value": lambda fields, _: EndTransactionMarker(
        is_commit=True, coordinator_epoch=fields["coordinator_epoch"]
    ).value(),
    "aborted": _aborted,
}
DECODERS: Mapping[str, Callable[[bytes, int], Mapping[str, Any]]] = {
    "offset_key": _key_fields,
    "group_key": _key_fields,
    "offset_value": _offset_fields,
    "group_value": _group_fields,
    "txn_key": lambda data, _: {"id": decode_transaction_key(data)},
    "txn_value": _transaction_fields,
    "marker_key": lambda data, _: {"commit": decode_marker_type(data)},
    "marker_value": lambda data, _: {"coordinator_epoch": decode_coordinator_epoch(data)},
    "aborted": _aborted_fields,
}


class RecordsSuite(Suite):
    """Encoders and decoders."""

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        self.given = given
        self.seen: dict[str, Any] = {}

    def do(self, step: Step) -> None:
        what, version = self.given["what"], self.given["version"]
        match step["do"]:
            case "encode":
                self.seen["hex"] = ENCODERS[what](self.given["fields"], version).hex()
            case "decode":
                fields = DECODERS[what](bytes.fromhex(self.given["hex"]), version)
                self.seen["fields"] = WholeMap(fields)
            case verb:
                raise UnknownInCaseError(verb)

    def see(self, key: str, expected: Any) -> Any:
        return self.seen[key]
