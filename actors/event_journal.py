"""The journal of one broker's controller: one JSON line per event, for people and Spark jobs.

A line has ``ts_ms`` (wall clock), ``broker_id``, ``controller_epoch``, ``event_id`` (ascending
within one run of the process), ``event``, ``cause``, ``queue_ms``, ``handling_ms`` and ``changes``
(a list of sentences; if there are many, the first few and the number of the others). Control
requests carry the event id, and brokers log it: ``<controller epoch>-<event id>``. The answer of a
broker also has ``answered_ms``: the time since the first attempt to send the request. An election
of leaders also has ``trigger``: who asked for it, by the names of ``ElectionTrigger``.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import orjson

from regent.core.controller import events
from regent.core.controller.effects import RecordChanges
from regent.core.controller.events import ControllerEvent
from regent.core.model import BrokerId

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024 * 1024  # then the file becomes `events.jsonl.1`, replacing an earlier one

_CAUSES: dict[type[object], str] = {
    events.Startup: "broker started",
    events.ControllerChange: "/controller written",
    events.Reelect: "/controller deleted",
    events.Expire: "session expired",
    events.RegisterBrokerAndReelect: "new session",
    events.SuspectReplicasChanged: "list of suspect replicas",
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
            **_trigger(handled.event),
            **_answer_time(handled.event),
            "changes": _sentences(handled.changes),
        }
        try:
            file = self._open()
            # The failed write may have left a part of a line.
            start = b"\n" if self._is_failing and file.tell() else b""
            file.write(start + orjson.dumps(line) + b"\n")
            self._is_failing = False
        except OSError as error:
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
            self._file = self._path.open("ab", buffering=0)
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
        case events.ControlRequestFailed(broker_id):
            return f"error of broker {broker_id}"
        case _:
            return "request"


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


def _sentences(changes: RecordChanges | None) -> list[str]:
    if changes is None:
        return []
    more = changes.total - len(changes.changes)
    return [*changes.changes, *([f"and {more} more"] if more else [])]
