"""What an operator can change from the console, if it was started with ``--console-write``.

Each operation is asked about before it is done, and written down with who did it.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from regent.client.cluster_connection import Cluster
from regent.client.controller_move import move_controller, moved
from regent.client.controller_ref import ControllerRef, refusal
from regent.client.wording import counted, listed
from regent.cluster.cluster_file import BrokerEntry
from regent.cluster.supervisor_socket import start_brokers
from regent.config.threads import NamedThread
from regent.console import group_operations, plan_operations, topic_operations
from regent.console.cluster_view import BrokerRow, ClusterView
from regent.console.form_numbers import MAX_OFFSET, number_in, partition_in
from regent.core.errors import ApiError, Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.controller import NoteOperationRequest, NoteOperationResponse
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

logger = logging.getLogger(__name__)

CHANGES_FILE: Final = "console.log"
"""In the data directory: a line of JSON for each change, with who did it."""

_CLIENT_ID: Final = "regent-console"
_TIMEOUT_S: Final = 30.0
_NOTED_USER: Final = 100
_NOTED: Final = 500  # characters; a request for the journal is small
_START_TIMEOUT_S: Final = 600.0
_PROC: Final = Path("/proc")


class OperationError(RegentError):
    """An operation cannot be done; the message says why."""


Fields: TypeAlias = Mapping[str, str]
"""What a form says, by the names of its fields; ``target`` is what the operation is about."""


class AskedField(NamedTuple):
    """A field of a question. ``kind``: ``text``, ``area`` (several lines), or its choices by |."""

    name: str
    label: str
    kind: str = "text"
    default: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """``question``: what is asked before, with the target in ``{}``; ``act`` does it.

    ``act`` returns what was done, in a sentence, and raises ``RegentError``. ``page``: the address
    to which the browser goes afterwards. ``preview`` returns what would be done, in lines; then the
    fields are asked for first, and the question comes with the lines.
    """

    title: str
    question: str
    act: Callable[[Cluster, Fields], str]
    fields: tuple[AskedField, ...] = ()
    page: str = "/"
    preview: Callable[[Cluster, Fields], Sequence[str]] | None = None

    def fields_of(self, given: Fields) -> dict[str, str]:
        """Return the fields of this operation, and no others."""
        of_fields = {field.name: given.get(field.name, field.default) for field in self.fields}
        return {"target": given.get("target", ""), **of_fields}

    def page_after(self, target: str) -> str:
        """Return where the browser goes afterwards."""
        return self.page.format(quote(target, safe=""))


def _entry(cluster: Cluster, target: str) -> BrokerEntry:
    """Return a broker of this machine whose process lives and is the one that was started."""
    file = cluster.file
    entries = {} if file is None else {str(entry.id): entry for entry in file.brokers.values()}
    if target not in entries:
        raise OperationError(f"broker {target} was not started on this machine")
    return entries[target]


def _signal(cluster: Cluster, target: str, number: signal.Signals) -> BrokerEntry:
    """Send a signal to the process of a broker, and to no other that has its id now."""
    entry = _entry(cluster, target)
    assert cluster.data_dir is not None
    folder = str(cluster.data_dir.resolve() / f"broker-{entry.id}")
    try:
        process = os.pidfd_open(entry.pid)
    except OSError:
        raise OperationError(f"broker {target} does not run") from None
    try:
        arguments = (_PROC / str(entry.pid) / "cmdline").read_bytes().split(b"\0")
        if entry.ended or os.fsencode(folder) not in arguments:
            raise OperationError(f"broker {target} does not run")
        signal.pidfd_send_signal(process, number)
    except OSError as error:
        raise OperationError(f"broker {target}: {error.strerror}") from None
    finally:
        os.close(process)
    return entry


def _kill(cluster: Cluster, fields: Fields) -> str:
    target = fields["target"]
    return f"broker {target} (process {_signal(cluster, target, signal.SIGKILL).pid}) was killed"


def _stop(cluster: Cluster, fields: Fields) -> str:
    target = fields["target"]
    _signal(cluster, target, signal.SIGCONT)
    _signal(cluster, target, signal.SIGTERM)
    return f"broker {target} was asked to stop: it hands over its leaderships first"


def _pause(cluster: Cluster, fields: Fields) -> str:
    target = fields["target"]
    _signal(cluster, target, signal.SIGSTOP)
    return f"broker {target} is paused"


def _resume(cluster: Cluster, fields: Fields) -> str:
    target = fields["target"]
    _signal(cluster, target, signal.SIGCONT)
    return f"broker {target} goes on"


def _start(cluster: Cluster, fields: Fields) -> str:
    target = fields["target"]
    entry = _entry(cluster, target)
    assert cluster.data_dir is not None
    (started,) = start_brokers(cluster.data_dir, (entry.id,), _START_TIMEOUT_S)
    return f"broker {target} serves as process {started['pid']}"


def _move_controller(cluster: Cluster, fields: Fields) -> str:
    text = fields.get("to", "").strip()
    broker_id = number_in(text, MAX_OFFSET)
    if text and broker_id is None:
        raise OperationError(f"{text!r} is not the id of a broker")
    with cluster.admin() as admin:
        return moved(*move_controller(admin, broker_id, round(_TIMEOUT_S * 1000)))


def _elect(cluster: Cluster, _fields: Fields) -> str:
    deadline = time.monotonic() + _TIMEOUT_S
    request = ElectLeadersRequest.of(ElectionType.PREFERRED)
    with (
        cluster.admin() as admin,
        ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller,
    ):
        answer = controller.ask_until_answered(request, ElectLeadersResponse, deadline=deadline)
    _raise_failures(answer.results)
    return f"{counted(len(answer.leaders), 'partition')} got the preferred leader"


def _cancel(cluster: Cluster, fields: Fields) -> str:
    target = fields["target"]
    topic_partition = partition_in(target)
    if topic_partition is None:
        raise OperationError(f"{target!r} is not a partition")
    deadline = time.monotonic() + _TIMEOUT_S
    request = AlterPartitionReassignmentsRequest.of({topic_partition: None})
    with (
        cluster.admin() as admin,
        ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller,
    ):
        answer = controller.ask_until_answered(
            request, AlterPartitionReassignmentsResponse, deadline=deadline
        )
    _raise_failures(answer.results)
    return f"the move of {target} is cancelled"


def _raise_failures(results: Mapping[TopicPartition, ApiError]) -> None:
    fine = (Errors.NONE, Errors.ELECTION_NOT_NEEDED)
    failed = [f"{p}: {refusal(p, r)}" for p, r in results.items() if r.error_code not in fine]
    if failed:
        raise OperationError(listed(failed, 5, separator="; "))


_PLAN_RATE: Final = AskedField("throttle", "Bytes a second of each broker; without: no limit")

OPERATIONS: Final[Mapping[str, Operation]] = {
    "kill": Operation(
        "Kill", "Kill broker {} (SIGKILL)? Others take over what it leads; it stays dead.", _kill
    ),
    "stop": Operation(
        "Stop", "Stop broker {} in order? It hands over its leaderships, then it ends.", _stop
    ),
    "pause": Operation(
        "Pause",
        "Pause broker {} (SIGSTOP)? It answers nobody; after its session timeout others take over.",
        _pause,
    ),
    "resume": Operation("Resume", "Let broker {} go on (SIGCONT)?", _resume),
    "start": Operation("Start", "Start broker {} again?", _start),
    "move-controller": Operation(
        "Move the controller",
        "Make another broker the controller? It loads all metadata in a new epoch.",
        _move_controller,
        (AskedField("to", "To broker; without one, the brokers elect the next one"),),
    ),
    "elect-preferred": Operation(
        "Elect preferred leaders", "Let every partition's preferred replica lead it?", _elect
    ),
    "cancel-move": Operation(
        "Cancel",
        "Cancel the move of {}? Its former replicas stay, and what was copied is deleted.",
        _cancel,
        page="/moves",
    ),
    "cancel-moves": Operation(
        "Roll all moves back",
        "Cancel all moves that are in progress? Their former replicas stay, and what was copied is"
        " deleted. A plan that a command executes begins them again: pause the moves or end it"
        " first.",
        group_operations.cancel_all,
        page="/moves",
    ),
    "execute-plan": Operation(
        "Execute the plan",
        "Execute plan {}, or go on with it?",
        plan_operations.execute,
        (_PLAN_RATE,),
        "/moves",
    ),
    "roll-back-plan": Operation(
        "Roll the plan back",
        "Roll plan {} back? Its moves in flight are cancelled, and what it has moved moves back.",
        plan_operations.roll_back,
        (_PLAN_RATE,),
        "/moves",
    ),
    "pause-plan": Operation(
        "Pause the plan",
        "Let what executes plan {} begin no more moves? Those in flight end.",
        plan_operations.pause,
        page="/moves",
    ),
    "resume-plan": Operation(
        "Resume the plan",
        "Let what executes plan {} go on? If nothing executes it, execute it instead.",
        plan_operations.resume,
        page="/moves",
    ),
    "throttle-moves": Operation(
        "Throttle the moves",
        "Limit what each broker sends and receives for the moves that are in progress?",
        group_operations.throttle_moves,
        (AskedField("rate", "Bytes a second", default="50000000"),),
        "/moves",
    ),
    "unthrottle-moves": Operation(
        "Remove all throttles",
        "Remove the throttles of replication of all brokers and topics?",
        group_operations.unthrottle_moves,
        page="/moves",
    ),
    "pause-moves": Operation(
        "Pause the moves",
        "Pause all moves? Those in flight keep what they have copied and go on at a trickle; plans"
        " begin no other one.",
        group_operations.pause,
        page="/moves",
    ),
    "resume-moves": Operation(
        "Resume the moves",
        "Let all moves go on at the rates that they had?",
        group_operations.resume,
        page="/moves",
    ),
    "reset-offsets": Operation(
        "Reset the offsets",
        "Change what group {} reads next? It must have no members.",
        group_operations.reset_offsets,
        (
            AskedField("topic", "Topic; without one, all that the group has committed"),
            AskedField("to", "To", group_operations.TO, "earliest"),
            AskedField("value", "Offset, distance (-10: back), or time (10m, 2026-01-31T23:59:00)"),
        ),
        "/groups",
        group_operations.preview_reset,
    ),
    "abort-transaction": Operation(
        "Abort the transaction",
        "Abort the open transaction of {}? Its producer is fenced: it must begin anew.",
        group_operations.abort_transaction,
        page="/groups",
    ),
    "abort-hanging": Operation(
        "Abort in this partition",
        "Abort a transaction in partition {} only? Do this if its coordinator has lost it: of a"
        " transaction that is still committed, the records of this partition would be missing.",
        group_operations.abort_hanging,
        (AskedField("start", "Offset at which it began"),),
        "/groups",
    ),
    "create-topic": Operation(
        "Create a topic",
        "Create a topic? Without a number the default of the brokers counts.",
        topic_operations.create,
        (
            AskedField("name", "Name"),
            AskedField("partitions", "Partitions"),
            AskedField("replicas", "Replicas of each"),
            AskedField("settings", "Settings, NAME=VALUE in each line", "area"),
        ),
        "/topics",
    ),
    "grow-topic": Operation(
        "Add partitions",
        "Add partitions to topic {}? They cannot be removed again, and keys may move to others.",
        topic_operations.grow,
        (AskedField("partitions", "Partitions that it shall have"),),
        "/topic?name={}",
    ),
    "configure-topic": Operation(
        "Change a setting",
        "Change a setting of topic {}? Without a value, that of the brokers counts again.",
        topic_operations.configure,
        (AskedField("setting", "Setting"), AskedField("value", "Value")),
        "/topic?name={}",
    ),
    "protect-topic": Operation(
        "Protect",
        "Protect topic {}? Brokers refuse every request to delete it.",
        topic_operations.protect,
        page="/topic?name={}",
    ),
    "unprotect-topic": Operation(
        "Take the protection away",
        "Take the protection of topic {} away? It can be deleted then.",
        topic_operations.unprotect,
        page="/topic?name={}",
    ),
    "delete-topic": Operation(
        "Delete the topic",
        "Delete topic {} with all of its records? It can be brought back for a minute, or as long"
        " as log.segment.delete.delay.ms of the brokers says.",
        topic_operations.delete,
        (AskedField("again", "Write the name of the topic again"),),
        "/topics",
    ),
    "undelete-topic": Operation(
        "Bring a topic back",
        "Bring a topic back that was deleted? Brokers must still have its files.",
        topic_operations.undelete,
        (AskedField("name", "Name"),),
        "/topics",
    ),
    "produce": Operation(
        "Write a record",
        "Write a record to topic {}?",
        topic_operations.produce,
        (
            AskedField("partition", "Partition; without one, the key chooses it"),
            AskedField("key", "Key"),
            AskedField("value", "Value", "area"),
            AskedField("headers", "Headers, NAME=VALUE in each line", "area"),
        ),
        "/topic?name={}",
    ),
}
"""The operations by the names in addresses."""


def offered(view: ClusterView, row: BrokerRow) -> tuple[str, ...]:
    """Return the operations that a broker's lane has: only processes of this machine can be hit."""
    if view.data_dir is None or not row.process:
        return ()
    return ("kill", "stop", "pause", "resume") if row.is_registered else ("start", "resume")


def perform(cluster: Cluster, name: str, fields: Fields) -> str:
    """Do an operation and write it down; return what was done. Raises ``RegentError``."""
    operation, target = OPERATIONS[name], fields.get("target", "")
    try:
        done = operation.act(cluster, fields)
    except RegentError as error:
        _note(cluster, name, target, f"failed: {error}")
        raise
    _note(cluster, name, target, done)
    NamedThread(
        _note_in_journal, "console-note", (cluster, f"{name} {target}".strip(), done)
    ).start()
    return done


def _note_in_journal(cluster: Cluster, what: str, done: str) -> None:
    """Let the controller write into its journal what was done, and by whom.

    There may be none now: it may be the one that was killed.
    """
    if cluster.bootstrap:
        return
    request = NoteOperationRequest(_user()[:_NOTED_USER], f"{what}: {done}"[:_NOTED])
    try:
        with (
            cluster.admin() as admin,
            ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller,
        ):
            deadline = time.monotonic() + _TIMEOUT_S
            controller.ask_until_answered(request, NoteOperationResponse, deadline=deadline)
    except RegentError as error:
        logger.error("the journal does not have %s: %s", what, error)


def _user() -> str:
    """Return the name of who runs the console; in a container, a user may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _note(cluster: Cluster, name: str, target: str, result: str) -> None:
    user = _user()
    logger.warning("%s of %r by %s: %s", name, target, user, result)
    if cluster.data_dir is None:
        return
    line = {
        "ts_ms": time.time_ns() // 1_000_000,
        "user": user,
        "operation": name,
        "target": target,
        "result": result,
    }
    path = cluster.data_dir / CHANGES_FILE
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        logger.error("%s: %s", path, error.strerror)
