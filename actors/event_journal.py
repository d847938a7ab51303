"""The journal of one broker's controller: one JSON line per event, for people and Spark jobs.

Every line has these fields:

* ``ts_ms`` (int): when the handling began, in milliseconds of the wall clock
* ``broker_id`` (int): the broker whose controller it is
* ``controller_epoch`` (int): the term that the event belongs to; 0: none
* ``event_id`` (int): ascending within one run of the process. Control requests carry it, and
  brokers log it: ``<controller epoch>-<event id>``
* ``event`` (str): the kind, a class of ``core/controller/events.py``
* ``cause`` (str): what triggered it, for people
* ``queue_ms``, ``handling_ms`` (float): how long it waited, and how long it was handled
* ``changes`` (list of str): a sentence for each named change: the first few of the event; if there
  are more, the last sentence is ``and N more``

These are absent where the event has nothing to tell:

* ``broker`` (int): the broker that the event is about, or that sent the request or the answer
* ``topic`` (str), ``partition`` (int): the topic or the partition that the event is about
* ``trigger`` (str): who asked for an election of leaders, by the names of ``ElectionTrigger``
* ``answered_ms`` (float): of a broker's answer: the time since its request was first sent
* ``change_count`` (int): the number of changes, named or not
* ``elected`` (int): the epoch of the term that this broker won
* ``resigned`` (int): the epoch of the term that this broker ended
* ``started``, ``failed`` (list of int): brokers that registered; brokers whose registration is gone
* ``partitions`` (list): the named changes of partitions, each with ``topic`` (str), ``partition``
  (int), ``leader`` (int; -1: none), ``isr`` (list of int), ``leader_epoch`` (int), and the values
  before, ``leader_before`` and ``isr_before``: absent if it was created, or they are not known
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import orjson

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor
from regent.core.controller import events
from regent.core.controller.effects import (
    BrokersFailed,
    BrokersStarted,
    Change,
    ControllerElected,
    ControllerResigned,
    PartitionChanged,
    PartitionCreated,
    RecordChanges,
)
from regent.core.controller.events import ControllerEvent
from regent.core.errors import Errors
from regent.core.model import BrokerId, LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from regent.core.protocol.broker import DescribeEventsRequest, DescribeEventsResponse
from regent.storage.journal_reader import JOURNAL, read_part

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024 * 1024  # then the file becomes `events.jsonl.1`, replacing an earlier one

_CAUSES: dict[type[object], str] = {
    events.Startup: "broker started",
    events.ControllerChange: "/controller written",
    events.Reelect: "/controller deleted",
    events.Expire: "end of the session",
    events.RegisterBrokerAndReelect: "new session",
    events.SuspectReplicasChanged: "list of suspect replicas",
    events.ReplicasGivenUp: "StopReplica of a controller of Kafka",
    events.AdvertisedListenersChanged: "advertised.listeners",
    events.Resign: "unexpected error",
    events.StandAgain: "timer",
    events.BrokerChange: "/brokers/ids",
    events.TopicChange: "/brokers/topics",
    events.TopicDeletion: "/admin/delete_topics",
    events.ZkPartitionReassignment: "/admin/reassign_partitions",
    events.PreferredReplicaElection: "/admin/preferred_replica_election",
    events.IsrChangeNotification: "/isr_change_notification",
    events.LogDirEventNotification: "/log_dir_event_notification",
    events.AutoPreferredReplicaLeaderElection: "timer",
    events.DeleteExpiredTokens: "timer",
    events.ControlledShutdownTimeout: "timer",
    events.UncleanLeaderElectionEnable: "/config/brokers",
}


@dataclass(frozen=True, slots=True)
class HandledEvent:
    """A handled event; ``controller_epoch`` is that of the term it belongs to, 0 for none."""

    event: ControllerEvent
    controller_epoch: int
    now_ms: int
    queue_ms: float
    handling_ms: float
    changes: RecordChanges | None
    event_id: int


class EventJournalReader(RegentActor):
    """Reads the journal for other machines, on a thread of its own: a disk may be slow."""

    inbox_limit = 100

    def __init__(self, directory: Path, broker_id: BrokerId) -> None:
        super().__init__(f"journal-reader-{broker_id}")
        self._directory = directory
        self._broker_id = broker_id

    def handle(self, message: DescribeEventsRequest, reply: Reply | None) -> None:
        """Answer with a part of the journal."""
        if reply is None:
            return
        try:
            reply.set(read_part(self._directory, self._broker_id, message))
        except OSError as error:
            logger.warning("%s: cannot read events: %s", self._directory / JOURNAL, error.strerror)
            reply.set(DescribeEventsResponse(Errors.KAFKA_STORAGE_ERROR, self._broker_id))


class EventJournal(Protocol):
    """Records handled events."""

    def record(self, handled: HandledEvent) -> None:
        """Record one handled event."""
        ...


class EventJournalFile:
    """Appends to ``events.jsonl``.

    If a write fails, for example on a full disk, the line is lost and the controller continues.
    """

    def __init__(self, path: Path, broker_id: BrokerId) -> None:
        self._path = path
        self._broker_id = broker_id
        self._file: IO[bytes] | None = None
        self._is_failing = False
        self._is_torn = False  # the file may end with a part of a line

    def record(self, handled: HandledEvent) -> None:
        """Append one line and flush it."""
        line = {
            "ts_ms": handled.now_ms,
            "broker_id": self._broker_id,
            "controller_epoch": handled.controller_epoch,
            "event_id": handled.event_id,
            "event": type(handled.event).__name__,
            "cause": cause_of(handled.event),
            "queue_ms": round(handled.queue_ms, 3),
            "handling_ms": round(handled.handling_ms, 3),
            **_subject(handled.event),
            **_trigger(handled.event),
            **_answer_time(handled.event),
            **_changes(handled.changes),
        }
        try:
            file = self._open()
            data = (b"\n" if self._is_torn and file.tell() else b"") + orjson.dumps(line) + b"\n"
            while data:  # a nearly full disk takes a part, and says why only when asked again
                data = data[file.write(data) :]
            self._is_failing = self._is_torn = False
        except OSError as error:
            self._is_torn = True
            if not self._is_failing:
                logger.error("%s: cannot record events: %s", self._path, error.strerror)
            self._is_failing = True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        if self._file is not None and self._file.tell() >= MAX_BYTES:
            self.close()
            os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        if self._file is None:
            self._file = self._path.open("a+b", buffering=0)
            if self._file.tell():
                self._file.seek(-1, os.SEEK_END)
                self._is_torn = self._file.read(1) != b"\n"
        return self._file


def cause_of(event: ControllerEvent) -> str:
    """Return what triggered an event, in a few words."""
    return _CAUSES.get(type(event)) or _znode(event) or _message(event)


def _znode(event: ControllerEvent) -> str | None:
    match event:
        case events.BrokerModifications(broker_id):
            return f"/brokers/ids/{broker_id}"
        case events.PartitionModifications(topic):
            return f"/brokers/topics/{topic}"
        case events.PartitionReassignmentIsrChange(topic_partition):
            return f"state of {topic_partition}"
        case events.TopicUncleanLeaderElectionEnable(topic):
            return f"/config/topics/{topic}"
        case _:
            return None


def _message(event: ControllerEvent) -> str:
    match event:
        case events.ControlledShutdown(_, broker_id, _):
            return f"request of broker {broker_id}"
        case events.OperationNoted(_, request):
            return f"{request.user} at the console"
        case events.AlterPartitionReceived(_, request):
            return f"request of broker {request.broker_id}"
        case events.ControlledShutdownAbandoned(broker_id):
            return f"broker {broker_id} did not stop"
        case (
            events.LeaderAndIsrResponseReceived(broker_id)
            | events.UpdateMetadataResponseReceived(broker_id)
            | events.TopicDeletionStopReplicaResponseReceived(broker_id)
        ):
            return f"answer of broker {broker_id}"
        case events.ChannelOverflowed(broker_id):
            return f"channel of broker {broker_id} is full"
        case events.BrokerUnusable(broker_id):
            return f"broker {broker_id} takes no requests"
        case events.ControlRequestFailed(broker_id):
            return f"error of broker {broker_id}"
        case _:
            return "request"


def _subject(event: ControllerEvent) -> dict[str, object]:
    """Return the broker, the topic or the partition that the event is about."""
    match event:
        case events.AlterPartitionReceived(_, request):
            return {"broker": request.broker_id}
        case events.PartitionModifications(topic) | events.TopicUncleanLeaderElectionEnable(topic):
            return {"topic": topic}
        case events.PartitionReassignmentIsrChange(topic_partition):
            return topic_partition._asdict()
        case _:
            broker_id = getattr(event, "broker_id", None)
            return {} if broker_id is None else {"broker": broker_id}


def _trigger(event: ControllerEvent) -> dict[str, str]:
    return {"trigger": event.trigger.value} if isinstance(event, events.ElectionEvent) else {}


def _answer_time(event: ControllerEvent) -> dict[str, float]:
    match event:
        case (
            events.LeaderAndIsrResponseReceived(answered_ms=answered_ms)
            | events.UpdateMetadataResponseReceived(answered_ms=answered_ms)
            | events.TopicDeletionStopReplicaResponseReceived(answered_ms=answered_ms)
        ):
            return {"answered_ms": round(answered_ms, 3)}
        case _:
            return {}


def _changes(changes: RecordChanges | None) -> dict[str, object]:
    if changes is None:
        return {"changes": []}
    named = changes.changes
    more = changes.total - len(named)
    sentences = [*map(str, named), *([f"and {more} more"] if more else [])]
    return {"change_count": changes.total, **_typed(named), "changes": sentences}


def _typed(changes: Iterable[Change]) -> dict[str, object]:
    """Return the fields of the changes that have more than a sentence."""
    epochs: dict[str, int] = {}
    lists: dict[str, list[object]] = defaultdict(list)
    for change in changes:
        match change:
            case ControllerElected(_, epoch):
                epochs["elected"] = epoch
            case ControllerResigned(_, epoch):
                epochs["resigned"] = epoch
            case BrokersStarted(broker_ids):
                lists["started"] += broker_ids
            case BrokersFailed(broker_ids):
                lists["failed"] += broker_ids
            case PartitionCreated(topic_partition, now):
                lists["partitions"].append(_partition(topic_partition, None, now))
            case PartitionChanged(topic_partition, before, now):
                lists["partitions"].append(_partition(topic_partition, before, now))
            case str():
                pass
    return {**epochs, **lists}


def _partition(
    topic_partition: TopicPartition, before: LeaderIsrAndControllerEpoch | None, now: LeaderAndIsr
) -> dict[str, object]:
    then = before and before.leader_and_isr
    return {
        **topic_partition._asdict(),
        **({"leader_before": then.leader, "isr_before": then.isr} if then else {}),
        "leader": now.leader,
        "isr": now.isr,
        "leader_epoch": now.leader_epoch,
    }
