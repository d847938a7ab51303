"""The suite ``group``: the group coordinator over a simulated log."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from regent.core.coordinator.group.group_coordinator import GroupCoordinator
from regent.core.coordinator.group.group_loading import GroupLoader
from regent.core.coordinator.group.group_metadata_manager import (
    ACKS_ALL,
    Clock,
    GroupConfig,
    RespondToAppend,
)
from regent.core.coordinator.group.group_records import (
    GroupKey,
    OffsetKey,
    Record,
    StoredGroup,
    StoredMember,
    decode_key,
    encode_key,
    encode_value,
)
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    LeavingMember,
    OffsetAndMetadata,
    SupportedProtocol,
    SyncGroup,
    VerifiedProducer,
)
from regent.core.protocol.messages.groups import JoinGroupResponse
from tests.conformance.coordinators.coordinator_suite import CoordinatorSuite, SimulatedAppends
from tests.conformance.coordinators.suite import ReadMapping, SeenSet, Step, named, partition_of
from tests.conformance.fields import WholeMap
from tests.support.world import subscription

PARTITION = 0
FIRST_LEAVE_OF_SEVERAL = 3
Batch = tuple[int, int | None, Any]  # offset, producer of a transaction, what is in it


class SimulatedLog(SimulatedAppends):
    """The log of one partition. Its batches are also encoded and decoded, as a real one's are."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self.to_load: list[tuple[int, int]] = []
        self._offsets = count()

    def add(self, content: Any, producer_id: int | None = None, size: int = 1) -> int:
        offset = next(self._offsets)
        for _ in range(size - 1):
            next(self._offsets)
        self.batches.append((offset, producer_id, content))
        return offset

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        producer_id = None if producer is None else producer.producer_id
        encoded = [(encode_key(key), encode_value(value)) for key, value in records]

        def finish(error: Errors) -> None:
            is_appended = error is Errors.NONE
            respond(error, self.add(encoded, producer_id, len(encoded)) if is_appended else -1)

        if all(value is None for _, value in records):
            finish(Errors.NONE)
        else:
            self.answer(finish)

    def load(self, partition: int, term: int) -> None:
        self.to_load.append((partition, term))

    def read(self) -> GroupLoader:
        loader = GroupLoader()
        for offset, producer_id, content in self.batches:
            if isinstance(content, bool):
                assert producer_id is not None
                loader.add_marker(producer_id, is_commit=content)
            elif content is not None:
                loader.add_batch(offset, content, producer_id)
        return loader

    def tombstones(self) -> list[str]:
        found = []
        for _, _, content in self.batches:
            for key, value in content if isinstance(content, list) else ():
                decoded_key = decode_key(key)
                if value is None and isinstance(decoded_key, OffsetKey):
                    group, (topic, partition) = decoded_key
                    found.append(f"{group}:{topic}-{partition}")
                elif value is None and decoded_key is not None:
                    found.append(f"group:{decoded_key.group_id}")
        return found


def log_batch(log: SimulatedLog, row: Mapping[str, Any]) -> None:
    match row["kind"]:
        case "offsets":
            records = []
            for offset in row["offsets"]:
                key = OffsetKey(row["group"], TopicPartition(offset["topic"], offset["partition"]))
                value = None
                if offset["offset"] is not None:
                    expire = offset.get("expire")
                    value = OffsetAndMetadata(
                        offset["offset"],
                        metadata=offset.get("metadata", ""),
                        commit_timestamp_ms=offset.get("time", 0),
                        expire_timestamp_ms=-1 if expire is None else expire,
                    )
                records.append((encode_key(key), encode_value(value)))
            log.add(records, row.get("producer"), len(records))
        case "group":
            stored = None if row.get("tombstone") else stored_group(row)
            log.add([(encode_key(GroupKey(row["group"])), encode_value(stored))])
        case "marker":
            log.add(row["commit"], row["producer"])
        case "unknown":
            log.add([(struct.pack(">h", row["version"]) + b"whatever", b"\x00\x00")])
        case "empty_control":
            log.add(None)
        case _:
            raise ValueError(f"unknown record {row['kind']}")


def stored_group(row: Mapping[str, Any]) -> StoredGroup:
    return StoredGroup(
        row.get("type") or "",
        row.get("generation", 0),
        row.get("protocol"),
        row.get("leader"),
        row.get("timestamp", -1),
        tuple(
            StoredMember(
                member["id"],
                member.get("instance"),
                "client",
                "/127.0.0.1",
                member.get("rebalance", 500),
                member.get("session", 500),
                subscription(*member["topics"]) if "topics" in member else b"\xff",
                bytes.fromhex(member.get("assignment", "")),
            )
            for member in row.get("members", ())
        ),
    )


@dataclass(frozen=True)
class MillisecondsConfig(GroupConfig):
    """The setting of the product is in minutes."""

    retention_ms: int = 0

    @property
    def offsets_retention_ms(self) -> int:
        return self.retention_ms


class GroupSuite(CoordinatorSuite):
    """The coordinator of one partition, which has the group ``g`` and those named beside it."""

    log: SimulatedLog

    def __init__(self, given: ReadMapping) -> None:
        super().__init__()
        self.now = given.get("now", 0)
        config = given.get("config", {})
        self.log = SimulatedLog()
        for row in given.get("log", ()):
            log_batch(self.log, row)
        numbers = count(1)
        elsewhere = dict.fromkeys(given.get("not_mine", ()), 1)
        elsewhere |= dict.fromkeys(given.get("loading", ()), 2)
        self.coordinator = GroupCoordinator(
            MillisecondsConfig(
                retention_ms=config.get("retention_ms", 86_400_000),
                group_min_session_timeout_ms=config.get("min_session_ms", 10),
                group_max_session_timeout_ms=config.get("max_session_ms", 600_000),
                group_max_size=config.get("max_size", 4),
                group_initial_rebalance_delay_ms=config.get("initial_delay_ms", 50),
                offset_metadata_max_bytes=config.get("metadata_max", 4_096),
            ),
            self.log,
            Clock(lambda: self.now, lambda: self.now),
            partition_of=lambda group_id: elsewhere.get(group_id, PARTITION),
            new_member_id=lambda prefix: f"{prefix}-{next(numbers)}",
        )
        if given.get("active", True):
            self.coordinator.start()
        if given.get("loading"):
            self.coordinator.on_elected(2, 0, 0)
            self.log.to_load.clear()
        self.epoch = 0
        self.term: int | None = None if given.get("log") else 0
        if not given.get("log"):
            self.coordinator.on_elected(PARTITION, 0, 0)
            self.log.to_load.clear()
            self.coordinator.on_loaded(PARTITION, 0, {})

    # --- symbols ---

    def resolved(self, expected: Any) -> Any:
        if isinstance(expected, str):
            return self.member(expected)
        if isinstance(expected, list):
            return [self.resolved(value) for value in expected]
        if isinstance(expected, Mapping):
            return {
                self.member(key): self.generation(value)
                if key == "generation"
                else self.resolved(value)
                for key, value in expected.items()
            }
        return expected

    def member(self, name: str) -> str:
        if name.startswith("@"):
            return str(self.answers[name[1:]]["member"])
        return name

    def generation(self, value: Any) -> int:
        if isinstance(value, str):
            return int(self.answers[value[1:]]["generation"])
        return int(value)

    # --- steps ---

    def do_join(self, step: Step) -> None:
        protocols = step.get("protocols", [{"name": "range", "raw": ""}])

        def respond(result: JoinGroupResponse) -> None:
            version = step.get("version", 9)
            protocol = result.protocol_name
            self.answer(
                step,
                error=Errors(result.error_code).name,
                member=result.member_id,
                generation=result.generation_id,
                leader=result.leader,
                protocol="" if protocol is None and version < 7 else protocol,
                type=result.protocol_type,
                members=SeenSet(member.member_id for member in result.members),
                members_count=len(result.members),
                skip=result.skip_assignment,
                leader_is_member=result.leader == result.member_id,
            )

        request = JoinGroup(
            step.get("group", "g"),
            self.member(step.get("member", "")),
            step.get("instance"),
            "client",
            "/127.0.0.1",
            step.get("session", 500),
            step.get("rebalance", 500),
            step.get("type", "consumer"),
            tuple(
                SupportedProtocol(
                    row["name"],
                    subscription(*row["topics"])
                    if "topics" in row
                    else bytes.fromhex(row.get("raw", "")),
                )
                for row in protocols
            ),
            requires_member_id=step.get("version", 9) >= 4,
            can_skip_assignment=step.get("version", 9) >= 9,
        )
        self.coordinator.join(request, respond)

    def do_sync(self, step: Step) -> None:
        assignments = {
            self.member(name): bytes.fromhex(data)
            for name, data in step.get("assignment", {}).items()
        }
        request = SyncGroup(
            step.get("group", "g"),
            self.generation(step["generation"]),
            self.member(step["member"]),
            step.get("instance"),
            step.get("type"),
            step.get("protocol"),
            assignments,
            needs_protocol=step.get("version", 4) >= 5,
        )
        self.coordinator.sync(
            request,
            lambda result: self.answer(
                step,
                error=Errors(result.error_code).name,
                assignment=result.assignment.hex(),
                type=result.protocol_type,
                protocol=result.protocol_name,
            ),
        )

    def do_heartbeat(self, step: Step) -> None:
        error = self.coordinator.heartbeat(
            Heartbeat(
                step.get("group", "g"),
                self.member(step["member"]),
                self.generation(step["generation"]),
                step.get("instance"),
            )
        )
        self.answer(step, error=error.name)

    def do_leave(self, step: Step) -> None:
        members = [
            LeavingMember(self.member(row.get("member", "")), row.get("instance"))
            for row in step["members"]
        ]
        result = self.coordinator.leave(step.get("group", "g"), members)
        error, errors = result.error_code, [error for _, error in result.members]
        if step.get("version", 5) < FIRST_LEAVE_OF_SEVERAL and error is Errors.NONE:
            (error,), errors = errors, []
        self.answer(step, error=error.name, errors=[error.name for error in errors])

    def do_commit(self, step: Step) -> None:
        self._commit_offsets(step, None)

    def do_txn_commit(self, step: Step) -> None:
        """Commit, or say why the verification failed, which comes before checks of the member."""
        error = Errors[step.get("verify", "NONE")]
        producer = VerifiedProducer(step["producer"], 0)
        if error is Errors.NONE:
            self._commit_offsets(step, producer)
            return
        with self.log.refusing(error):
            self._commit_offsets(step, producer, is_verified=False)

    def _commit_offsets(
        self, step: Step, producer: VerifiedProducer | None, *, is_verified: bool = True
    ) -> None:
        retention = step.get("retention", -1)
        offsets = {
            TopicPartition(row["topic"], row["partition"]): OffsetAndMetadata(
                row["offset"],
                metadata=row.get("metadata", ""),
                commit_timestamp_ms=self.now,
                expire_timestamp_ms=-1 if retention == -1 else self.now + retention,
            )
            for row in step["offsets"]
        }
        member = (
            self.member(step.get("member", "")),
            self.generation(step.get("generation", -1)),
            step.get("instance"),
        )
        request = CommitOffsets(
            step.get("group", "g"),
            offsets,
            *(member if is_verified else ("", -1, None)),
            producer,
            knows_loading=producer is None or step.get("version", 3) >= 2,
        )
        self.coordinator.commit(
            request,
            lambda errors: self.answer(
                step, errors={named(tp): error.name for tp, error in errors.items()}
            ),
        )

    def do_marker(self, step: Step) -> None:
        marker_offset = self.log.add(step["commit"], step["producer"])
        self.coordinator.manager.complete_transaction(
            PARTITION, step["producer"], marker_offset, is_commit=step["commit"]
        )

    def do_fetch(self, step: Step) -> None:
        names = step["partitions"]
        wanted = None if names == "all" else [partition_of(name) for name in names]
        result = self.coordinator.manager.fetch(
            step.get("group", "g"), wanted, require_stable=step.get("stable", False)
        )
        offsets = {
            named(tp): [row.offset, row.error_code.name] for tp, row in result.offsets.items()
        }
        self.answer(step, error=result.error_code.name, offsets=WholeMap(offsets))

    def do_delete_offsets(self, step: Step) -> None:
        self.coordinator.manager.delete_offsets(
            step.get("group", "g"),
            [partition_of(name) for name in step["partitions"]],
            lambda result: self.answer(
                step,
                error=result.error_code.name,
                errors=WholeMap({named(tp): error.name for tp, error in result.partitions.items()}),
            ),
        )

    def do_describe(self, step: Step) -> None:
        result = self.coordinator.describe(step.get("group", "g"))
        self.answer(
            step,
            error=Errors(result.error_code).name,
            state=result.group_state,
            type=result.protocol_type,
            protocol=result.protocol_data,
            members=SeenSet(member.member_id for member in result.members),
            assignments={
                member.member_id: member.member_assignment.hex() for member in result.members
            },
        )

    def do_list(self, step: Step) -> None:
        listed = self.coordinator.manager.list_groups(step.get("states", []), step.get("types", []))
        self.answer(
            step,
            error=Errors(listed.error_code).name,
            groups=sorted(group.group_id for group in listed.groups),
        )

    def do_delete(self, step: Step) -> None:
        errors: dict[str, str] = {}

        def note(group: str, error: Errors) -> None:
            errors[group] = error.name

        for group in step["groups"]:
            self.coordinator.manager.delete_group(group, partial(note, group))
        self.answer(step, errors=errors)

    def do_tick(self, step: Step) -> None:
        end = self.now + step["ms"]
        while (due := self.coordinator.next_timer_ms) is not None and due <= end:
            self.now = max(self.now, due)
            self.coordinator.run_timers()
        self.now = end

    def do_expire(self, step: Step) -> None:
        manager = self.coordinator.manager
        manager.expire(list(manager.groups.values()))

    def do_topic_deleted(self, step: Step) -> None:
        self.coordinator.manager.on_partitions_deleted(list(map(partition_of, step["partitions"])))

    def do_elect(self, step: Step) -> None:
        self._elect_at(step["epoch"])

    def _elect_at(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)
        if self.term is None:
            self.term = epoch
        self.coordinator.on_elected(PARTITION, epoch, self.term)
        for partition, term in self.log.to_load:
            self.coordinator.on_loaded(partition, term, self.log.read().groups())
        self.log.to_load.clear()

    def do_resign(self, step: Step) -> None:
        self._resign_at(step["epoch"])

    def _resign_at(self, epoch: int) -> None:
        if epoch >= self.epoch:
            self.term = None  # the next leadership is another one
        self.epoch = max(self.epoch, epoch)
        self.coordinator.on_resigned(PARTITION, epoch)

    def do_reload(self, step: Step) -> None:
        self._resign_at(self.epoch + 1)
        self._elect_at(self.epoch + 2)

    # --- expectations ---

    def see(self, key: str, expected: Any) -> Any:
        if key == "tombstones":
            return self.log.tombstones()
        if key == "state":
            return {group_id: self._state(group_id) for group_id in expected}
        return super().see(key, expected)

    def _state(self, group_id: str) -> Any:
        group = self.coordinator.manager.groups.get(group_id)
        if group is None:
            return None
        topics = group.subscribed_topics
        return {
            "state": group.state.value,
            "generation": group.generation_id,
            "size": len(group.members),
            "type": group.protocol_type,
            "protocol": group.protocol_name,
            "leader": group.leader_id,
            "pending": len(group.pending_members),
            "statics": sorted(group.static_members),
            "subscribed": None if topics is None else sorted(topics),
            "offsets": WholeMap(
                (named(tp), committed.value.offset)
                for tp, committed in group.offsets.committed.items()
            ),
            "awaiting": group.awaiting_join_count,
        }
