"""What the console changes about groups, transactions and moves that are in progress.

Each function gets the fields of a form, with what it is about as ``target``; it returns what was
done, in a sentence, and raises ``RegentError``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from regent.client.cluster_connection import Cluster
from regent.client.controller_ref import ControllerRef
from regent.client.flight import Flight, ongoing_reassignments
from regent.client.move_pause import (
    pause_moves,
    refuse_if_paused,
    resume_moves,
    slow_new_moves,
)
from regent.client.move_throttle import clear_throttles, throttled_brokers, write_throttle
from regent.client.moves import as_moves
from regent.client.partitions import read_partitions
from regent.client.wording import counted, listed
from regent.config.moments import parse_moment
from regent.console.bootstrap_source import partitions_of, source_of
from regent.console.form_numbers import MAX_OFFSET, number_in, partition_in
from regent.console.inquiries import EARLIEST, LATEST, BrokerQuestions, GroupRow
from regent.core.errors import Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from regent.core.protocol.messages.producer_ids import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from regent.core.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from regent.transport.kafka.api import KafkaApiKey

TO: Final = "earliest|latest|offset|shift|time"
_CLIENT_ID: Final = "regent-console"
_TIMEOUT_S: Final = 30.0
_EMPTY: Final = ("Empty", "Dead")
_OFFSET_COMMIT: Final = (KafkaApiKey.OFFSET_COMMIT, 8)
_INIT_PRODUCER_ID: Final = (KafkaApiKey.INIT_PRODUCER_ID, 3)
_WRITE_TXN_MARKERS: Final = (KafkaApiKey.WRITE_TXN_MARKERS, 1)


class GroupChangeError(RegentError):
    """A change cannot be made; the message says why."""


class _Reset(NamedTuple):
    """What a group has committed of a partition, None: nothing, and what it shall have."""

    before: int | None
    after: int


# --- groups ---------------------------------------------------------------------------------------


def preview_reset(cluster: Cluster, fields: Mapping[str, str]) -> list[str]:
    """Return a line for each partition whose position would be set."""
    _, planned = _planned(cluster, fields)
    return [
        f"{partition}: {'none' if reset.before is None else reset.before} -> {reset.after}"
        for partition, reset in planned.items()
    ]


def reset_offsets(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Set the positions of a group without members."""
    group, planned = _planned(cluster, fields)
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for partition, reset in planned.items():
        row = OffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=reset.after,
            committed_metadata="",
        )
        topics[partition.topic].append(row)
    request = OffsetCommitRequest(
        group_id=group.group,
        topics=tuple(
            OffsetCommitRequestTopic(name=topic, partitions=tuple(rows))
            for topic, rows in topics.items()
        ),
    )
    questions = BrokerQuestions(cluster)
    answer = questions.ask_one(group.coordinator, _OFFSET_COMMIT, request, OffsetCommitResponse)
    refused = [
        f"{TopicPartition(topic.name, row.partition_index)}: {Errors(row.error_code).name}"
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code != Errors.NONE
    ]
    if refused:
        raise GroupChangeError(f"group {group.group} was not reset: {listed(refused, 5)}")
    return f"group {group.group} begins anew in {counted(len(planned), 'partition')}"


def _planned(
    cluster: Cluster, fields: Mapping[str, str]
) -> tuple[GroupRow, dict[TopicPartition, _Reset]]:
    name, topic = fields["target"], fields.get("topic", "").strip()
    questions = BrokerQuestions(cluster)
    answers = questions.groups()
    group = next((group for group in answers.found if group.group == name), None)
    if group is None:
        why = f" ({listed(answers.problems, 3)})" if answers.problems else ""
        raise GroupChangeError(f"there is no group {name}{why}")
    if group.members or group.state not in _EMPTY:
        members = counted(len(group.members), "member")
        raise GroupChangeError(f"group {name} has {members} and is {group.state}: stop them first")
    if not group.has_told_offsets:
        raise GroupChangeError(f"the offsets of group {name} are not known now")
    committed = {r.topic_partition: r.committed for r in group.rows if r.committed is not None}
    wanted = {p for p in committed if topic in ("", p.topic)}
    if topic:
        with source_of(cluster) as source:
            found = partitions_of(source, [topic]).partitions
        if not found:
            raise GroupChangeError(f"there is no topic {topic}")
        wanted |= {partition.topic_partition for partition in found}
    if not wanted:
        raise GroupChangeError(f"group {name} has no committed offsets: name a topic")
    starts, ends = (questions.offsets(wanted, which) for which in (EARLIEST, LATEST))
    if untold := wanted - (starts.found.keys() & ends.found.keys()):
        raise GroupChangeError(f"the offsets of {listed(sorted(untold), 5)} are not known now")
    new = _new_offsets(questions, fields, committed, starts.found, ends.found)
    clamped = {p: min(max(new[p], starts.found[p]), ends.found[p]) for p in sorted(wanted)}
    return group, {p: _Reset(committed.get(p), offset) for p, offset in clamped.items()}


def _new_offsets(
    questions: BrokerQuestions,
    fields: Mapping[str, str],
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    """Return the offsets that are meant; they may lie outside of the logs."""
    to, value = fields.get("to", ""), fields.get("value", "").strip()
    if to == "earliest":
        return starts
    if to == "latest":
        return ends
    if to == "time":
        try:
            since_ms = parse_moment(value)
        except ValueError as error:
            raise GroupChangeError(str(error)) from None
        found = questions.offsets(set(ends), since_ms).found
        if untold := ends.keys() - found.keys():
            raise GroupChangeError(f"the offsets of {listed(sorted(untold), 5)} are not known now")
        return {p: found[p] if found[p] >= 0 else end for p, end in ends.items()}
    if to not in ("offset", "shift"):
        raise GroupChangeError(f"{to!r} is none of {TO.replace('|', ', ')}")
    digits = value.removeprefix("-") if to == "shift" else value
    if number_in(digits, MAX_OFFSET) is None:
        raise GroupChangeError(f"{value!r} is no number of offsets")
    if to == "offset":
        return dict.fromkeys(ends, int(value))
    if missing := sorted(ends.keys() - committed.keys()):
        raise GroupChangeError(f"{listed(missing, 5)}: there is no committed offset to shift")
    return {p: committed[p] + int(value) for p in ends}


# --- transactions ---------------------------------------------------------------------------------


def abort_transaction(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Fence the producer of a transactional id: its coordinator aborts the open transaction.

    The producer id and epoch that were seen go with the request, so that no later producer of the
    same id is fenced.
    """
    name = fields["target"]
    questions = BrokerQuestions(cluster)
    row = next((r for r in questions.transactions().found if r.transactional_id == name), None)
    if row is None or row.state != "Ongoing":
        raise GroupChangeError(f"the transactional id {name!r} has no open transaction")
    request = InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=row.timeout_ms,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
    )
    answer = questions.ask_one(row.coordinator, _INIT_PRODUCER_ID, request, InitProducerIdResponse)
    # A coordinator that has begun to abort asks the producer to come back later.
    if answer.error_code not in (Errors.NONE, Errors.CONCURRENT_TRANSACTIONS):
        raise GroupChangeError(f"{name}: {Errors(answer.error_code).name}")
    return f"the transaction of {name} is aborted, and producer {row.producer_id} is fenced"


def abort_hanging(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Write the abort marker of a transaction whose coordinator has lost it."""
    topic_partition = partition_in(fields["target"])
    start = number_in(text := fields.get("start", "").strip(), MAX_OFFSET)
    if topic_partition is None:
        raise GroupChangeError(f"{fields['target']!r} is not a partition")
    if start is None:
        raise GroupChangeError(f"{text!r} is not the offset at which a transaction began")
    questions = BrokerQuestions(cluster)
    leader, found = questions.open_transactions(topic_partition)
    topic, number = topic_partition
    producer = next((p for p in found if p.current_txn_start_offset == start), None)
    if producer is None:
        raise GroupChangeError(f"{topic_partition}: no transaction is open since offset {start}")
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(number,)),),
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    request = WriteTxnMarkersRequest(markers=(marker,))
    answer = questions.ask_one(leader, _WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse)
    codes = {p.error_code for m in answer.markers for t in m.topics for p in t.partitions}
    if codes != {Errors.NONE}:
        names = listed([Errors(code).name for code in codes], 3)
        raise GroupChangeError(f"{topic_partition}: the leader answered {names or 'nothing'}")
    return f"{topic_partition}: the transaction of producer {producer.producer_id} is aborted"


# --- moves ----------------------------------------------------------------------------------------


def throttle_moves(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Limit the replication of all moves that are in progress, in each broker."""
    text = fields.get("rate", "").strip()
    rate = number_in(text, MAX_OFFSET)
    if not rate:
        raise GroupChangeError(f"{text!r} is no number of bytes a second")
    with cluster.admin() as admin:
        found = read_partitions(admin, admin.topics.read_topic_names()).partitions
        moving = {p.topic_partition: p.assignment for p in found}
        moves = as_moves({p: a for p, a in moving.items() if a.is_being_reassigned}).values()
        if not moves:
            raise GroupChangeError("no partition is being reassigned")
        refuse_if_paused(admin)
        write_throttle(admin.configs, moves, rate)
        slow_new_moves(admin)  # this may have set higher rates than a pause
        refuse_if_paused(admin)
    brokers = listed(sorted(throttled_brokers(moves)), 10)
    return f"{counted(len(moves), 'move')}: brokers {brokers} send and receive {text} B/s each"


def unthrottle_moves(cluster: Cluster, _fields: Mapping[str, str]) -> str:
    """Remove the throttles of all brokers and topics."""
    with cluster.admin() as admin:
        refuse_if_paused(admin)
        brokers, topics = list(admin.read_brokers()), admin.topics.read_topic_names()
        cleared = clear_throttles(admin.configs, brokers, topics)
    of = f"{counted(len(cleared.brokers), 'broker')} and {counted(len(cleared.topics), 'topic')}"
    return f"the throttles of {of} are removed"


def pause(cluster: Cluster, _fields: Mapping[str, str]) -> str:
    """Throttle the moves in flight to a trickle, and let plans begin no other one."""
    with cluster.admin() as admin:
        return f"{counted(pause_moves(admin), 'move')} paused"


def resume(cluster: Cluster, _fields: Mapping[str, str]) -> str:
    """Let the moves go on at their former rates."""
    with cluster.admin() as admin:
        return "the moves go on" if resume_moves(admin) else "moves were not paused"


def cancel_all(cluster: Cluster, _fields: Mapping[str, str]) -> str:
    """Cancel all moves that are in progress: their former replicas stay."""
    deadline = time.monotonic() + _TIMEOUT_S
    with (
        cluster.admin() as admin,
        ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller,
    ):
        found = ongoing_reassignments(controller, None, deadline=deadline)
        flight = Flight(list(as_moves(found).values()))
        flight.submit_all(controller, deadline=deadline, is_cancelled=True)
    if not found:
        raise GroupChangeError("no partition is being reassigned")
    if flight.refused:
        refused = [f"{p}: {why}" for p, why in sorted(flight.refused.items())]
        raise GroupChangeError(f"not cancelled: {listed(refused, 5, separator='; ')}")
    return f"{counted(len(flight.in_flight), 'move')} cancelled"
