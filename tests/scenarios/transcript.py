"""Runs a transcript: commands in a text file, and below each what the controller did.

A line that begins with ``#`` is prose, a line that begins with ``> `` is a command, everything else
is output. ``run`` returns the text with the output as it is now. Nothing is faked but ZooKeeper and
the brokers: the controllers are ``core.controller.Controller``.

    > brokers 1 2 3        register brokers
    > topic t 1,2,3 2,3,1  write the znode of a topic: the replicas of each partition
    > controller 1         let the controller of a broker stand for election
    > answer               let all brokers answer everything that they were sent
    > isr t-0 1,2          let the leader of a partition propose an ISR
    > reassign t-0 2,3     ask for a reassignment
    > delete t             ask for the deletion of a topic
    > shutdown 1           let a broker ask for its controlled shutdown
    > kill 1 2             let the sessions of brokers expire
    > move                 delete /controller, as `regent controller move`
    > pause 1              stop the controller of a broker, as SIGSTOP does
    > isr t-0 1,2 1        propose the ISR to the controller of this broker, even if it is paused
    > resume 1             let a paused controller handle what waits
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

from regent.core.controller.brokers.responses import response_event
from regent.core.controller.effects import (
    AddBroker,
    ControllerRoleChanged,
    Effect,
    RemoveBroker,
    ScheduleEvent,
    SendControlRequest,
    SendResponse,
)
from regent.core.controller.events import (
    AlterPartitionReceived,
    ApiPartitionReassignment,
    ControlledShutdown,
    ControllerEvent,
)
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.api import ActorResponse
from regent.core.protocol.control import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionRow,
)
from regent.core.protocol.envelope import EnvelopeResponse
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tests.support.controller_parts import Candidate
from tests.support.world import World

COMMAND = "> "
LEFT_OUT = ("/brokers/seqid", "/regent/controller_terms")


class Transcript:
    """A ZooKeeper, the brokers registered there, and the controllers of some of them."""

    def __init__(self) -> None:
        self._world = World()
        self._candidates: dict[BrokerId, Candidate] = {}
        self._paused: set[BrokerId] = set()
        self._unanswered: list[SendControlRequest] = []
        self._request_ids = 0
        self._lines: list[str] = []
        self._noted = self._world.zookeeper.snapshot()

    def run(self, text: str) -> str:
        """Return the text with the output of every command as it is now."""
        written: list[str] = []
        for line in text.splitlines():
            if line.startswith(COMMAND):
                written += [line, *self._perform(line.removeprefix(COMMAND))]
            elif line.startswith("#"):
                written.append(line)
            elif not line and written[-1:] != [""]:
                written.append("")
        return "\n".join(written).rstrip() + "\n"

    def _perform(self, command: str) -> list[str]:
        name, *arguments = command.split()
        self._lines = []
        act: Callable[..., None] = getattr(self, f"_{name}")
        act(*arguments)
        self._note_writes()
        self._catch_up()
        return [*self._lines, ""]

    # --- commands ---

    def _brokers(self, *broker_ids: str) -> None:
        for broker_id in map(int, broker_ids):
            if broker_id not in self._candidates:
                self._world.register(broker_id)

    def _topic(self, topic: str, *replicas: str) -> None:
        self._world.put_topic(topic, dict(enumerate(map(_ids, replicas))))

    def _controller(self, broker_id: str) -> None:
        candidate = Candidate(self._world, int(broker_id))
        self._candidates[int(broker_id)] = candidate
        self._handle(candidate, "RegisterBrokerAndReelect", candidate.start)

    def _answer(self) -> None:
        unanswered, self._unanswered = self._unanswered, []
        for sent in unanswered:
            event = response_event(
                sent.broker_id, sent.header, sent.request, _success(sent.request)
            )
            if event is not None:
                self._tell_controller(event)

    def _isr(self, name: str, isr: str, controller: str | None = None) -> None:
        topic_partition = _topic_partition(name)
        state = self._world.state(topic_partition)
        assert state is not None
        now, members = state.leader_and_isr, _ids(isr)
        epochs = {b: self._epoch(b) for b in {now.leader, *members}}
        row = AlterPartitionRow(
            *topic_partition,
            None,
            now.leader_epoch,
            members,
            tuple(epochs[b] for b in members),
            0,
            now.partition_epoch,
        )
        request = AlterPartitionRequest(now.leader, epochs[now.leader], (row,))
        at = None if controller is None else self._candidates[int(controller)]
        self._tell_controller(AlterPartitionReceived(self._next_id(), request), at)

    def _reassign(self, name: str, replicas: str) -> None:
        request = AlterPartitionReassignmentsRequest.of({_topic_partition(name): _ids(replicas)})
        self._tell_controller(ApiPartitionReassignment(self._next_id(), request))

    def _delete(self, topic: str) -> None:
        self._world.zookeeper.put(f"/admin/delete_topics/{topic}")

    def _shutdown(self, broker_id: str) -> None:
        epoch = self._epoch(int(broker_id))
        self._tell_controller(ControlledShutdown(self._next_id(), int(broker_id), epoch))

    def _kill(self, *broker_ids: str) -> None:
        for broker_id in map(int, broker_ids):
            candidate = self._candidates.pop(broker_id, None)
            if candidate is None:
                self._world.unregister(broker_id)
            else:
                candidate.session.expire()
        self._unanswered = [s for s in self._unanswered if str(s.broker_id) not in broker_ids]

    def _move(self) -> None:
        self._world.zookeeper.remove("/controller")

    def _pause(self, broker_id: str) -> None:
        self._paused.add(int(broker_id))

    def _resume(self, broker_id: str) -> None:
        self._paused.remove(int(broker_id))

    # --- what happens ---

    def _active(self) -> Candidate:
        running = [c for b, c in self._candidates.items() if b not in self._paused]
        return next(c for c in running if c.controller.is_active)

    def _tell_controller(self, event: ControllerEvent, at: Candidate | None = None) -> None:
        active = at or self._active()
        self._handle(active, _event(event), partial(active.handle, event))

    def _catch_up(self) -> None:
        while waiting := [
            c for b, c in self._candidates.items() if c.inbox and b not in self._paused
        ]:
            for candidate in waiting:
                event = candidate.inbox.popleft()
                self._handle(candidate, _event(event), partial(candidate.handle, event))

    def _handle(self, candidate: Candidate, event: str, handle: Callable[[], list[Effect]]) -> None:
        broker_id = next(b for b, c in self._candidates.items() if c is candidate)
        self._note_writes()
        at = len(self._lines)
        effects = handle()
        self._note_writes()
        sent = [effect for effect in effects if isinstance(effect, SendControlRequest)]
        self._unanswered += sent
        for what, several in groupby(effects, key=_title):
            self._lines += _effect_lines(what, list(several))
        if len(self._lines) > at:
            self._lines.insert(at, f"controller of broker {broker_id}: {event}")

    def _note_writes(self) -> None:
        before, after = self._noted, self._world.zookeeper.snapshot()
        self._noted = after
        for path in sorted({*before, *after}):
            old, new = before.get(path), after.get(path)
            if path.startswith(LEFT_OUT) or old == new:
                continue
            if new is None:
                self._lines.append(f"    delete {path}")
            elif old is None or old.stat.mzxid != new.stat.mzxid:
                what = "create" if old is None else "write "
                data = "" if path.startswith("/brokers/ids/") else new.data.decode()
                if data or path.startswith(("/brokers/ids/", "/admin/delete_topics/")):
                    self._lines.append(f"    {what} {path}  {data}".rstrip())

    def _epoch(self, broker_id: BrokerId) -> int:
        return self._world.zookeeper.snapshot()[f"/brokers/ids/{broker_id}"].stat.czxid

    def _next_id(self) -> int:
        self._request_ids += 1
        return self._request_ids


def _effect_lines(title: str, effects: Sequence[Effect]) -> Iterator[str]:
    """Yield what is to be done; equal requests to several brokers are one line."""
    match effects[0]:
        case SendControlRequest():
            by_rows: dict[tuple[str, ...], list[BrokerId]] = {}
            for sent in effects:
                assert isinstance(sent, SendControlRequest)
                by_rows.setdefault(tuple(_rows(sent.request)), []).append(sent.broker_id)
            for rows, broker_ids in by_rows.items():
                yield f"    to {_text(tuple(broker_ids))}: {title}"
                yield from (f"        {row}" for row in rows)
        case _:
            yield from (f"    {title}" for _ in effects if title)


def _title(effect: Effect) -> str:
    """Return what an effect is in a few words; empty: it is left out."""
    match effect:
        case SendControlRequest(_, _, LeaderAndIsrRequest() as request):
            return f"LeaderAndIsr {request.type.name}"
        case SendControlRequest(_, _, UpdateMetadataRequest() as request):
            live = ",".join(str(broker.broker_id) for broker in request.live_brokers)
            return f"UpdateMetadata{' FULL' if request.is_full else ''}, live brokers {live}"
        case SendControlRequest():
            return "StopReplica"
        case AddBroker(registration):
            return f"open the channel to broker {registration.info.broker_id}"
        case RemoveBroker(broker_id):
            return f"close the channel to broker {broker_id}"
        case SendResponse(_, response):
            return f"reply {_answer(response)}"
        case ControllerRoleChanged(True, epoch):
            return f"active controller, controller epoch {epoch}"
        case ControllerRoleChanged(False, epoch):
            return f"resigned, controller epoch {epoch}"
        case ScheduleEvent(after_ms, event):
            return f"in {after_ms} ms: {_event(event)}"
        case _:
            return ""


def _answer(response: ActorResponse) -> str:
    assert not isinstance(response, EnvelopeResponse)  # the controller does not decide those
    if isinstance(response, AlterPartitionReassignmentsResponse):
        results = [f"{p} {result.error_code.name}" for p, result in response.results.items()]
    else:
        rows = getattr(response, "partitions", ())
        results = [f"{row.topic}-{row.partition} {row.error_code.name}" for row in rows]
    remaining = getattr(response, "remaining_partitions", None)
    if remaining is not None:
        results.append(f"{len(remaining)} partitions remain")
    name = type(response).__name__.removesuffix("Response")
    return ": ".join(
        [f"{name} {Errors(response.error_code).name}", *filter(None, [", ".join(results)])]
    )


def _rows(request: ControlRequest) -> Iterator[str]:
    if isinstance(request, StopReplicaRequest):
        for name, stop in request.partitions():
            what = "delete" if stop.delete_partition else "stop"
            yield f"{name}: {what}, leader epoch {stop.leader_epoch}"
        return
    for name, row in request.partitions():
        new = ", new" if getattr(row, "is_new", False) else ""
        isr = _text(row.isr)
        yield f"{name}: leader {row.leader}, isr {isr}, leader epoch {row.leader_epoch}{new}"


def _success(request: ControlRequest) -> ControlResponse:
    match request:
        case LeaderAndIsrRequest():
            rows = tuple(PartitionError(*tp, Errors.NONE) for tp, _ in request.partitions())
            return LeaderAndIsrResponse(Errors.NONE, rows)
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(Errors.NONE)
        case StopReplicaRequest():
            rows = tuple(PartitionError(*tp, Errors.NONE) for tp, _ in request.partitions())
            return StopReplicaResponse(Errors.NONE, rows)


def _event(event: ControllerEvent) -> str:
    source = getattr(event, "broker_id", None)
    topic = getattr(event, "topic", None)
    about = f" of broker {source}" if source is not None else f" of topic {topic}" if topic else ""
    return f"{type(event).__name__}{about}"


def _topic_partition(name: str) -> TopicPartition:
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


def _ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(map(int, text.split(",")))


def _text(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(map(str, brokers))
