"""Brings deleted topics back: brokers hold their deleted logs, then the controller decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from regent.client.controller_ref import ControllerError, ControllerRef
from regent.client.pauses import pauses
from regent.config.command_line import program
from regent.core.errors import BadDataError, BrokerNotFoundError, NoControlPortError, RegentError
from regent.core.model import NO_LEADER, TopicPartition
from regent.core.ports import DeletedTopic
from regent.core.protocol.broker import HoldDeletedLogsRequest, HoldDeletedLogsResponse
from regent.core.protocol.control import TopicId
from regent.core.protocol.controller import HeldLogs, UndeleteTopicRequest, UndeleteTopicResponse
from regent.core.topic_validation import topic_name_problem
from regent.transport.control.client import RequestError
from regent.transport.control.remote_ref import RemoteActorRef, ask
from regent.zk.stores.admin_store import ZkAdminStore, control_endpoint

_HOLD_S: Final = 10.0

OpenActor = Callable[[str], AbstractContextManager[RemoteActorRef]]


class NotUndeletedError(RegentError):
    """The topic cannot come back, or is not complete yet."""


def undeletable_topics(admin: ZkAdminStore) -> list[DeletedTopic]:
    """Return the deleted topics that can come back, as far as ZooKeeper knows.

    They are sorted by name; of one name, the last deleted topic is first.
    """
    now_ms = time.time_ns() // 1_000_000
    return [deleted for deleted in _remembered(admin) if now_ms < deleted.until_ms]


def _remembered(admin: ZkAdminStore) -> list[DeletedTopic]:
    found = admin.read_deleted_topics().values()
    topics = [deleted for deleted in found if isinstance(deleted, DeletedTopic)]
    return sorted(topics, key=lambda deleted: (deleted.topic, -deleted.deleted_ms, -deleted.zxid))


def undelete(
    admin: ZkAdminStore,
    controller: ControllerRef,
    open_actor: OpenActor,
    topic: str,
    topic_id: TopicId | None = None,
    *,
    timeout_s: float,
) -> DeletedTopic:
    """Bring a topic back and wait for its leaders. Raises ``NotUndeletedError``.

    ``topic_id``: which of several deleted topics of the name; None: the last one. Brokers keep the
    logs whatever the controller answers, so that the command can be repeated.
    """
    deadline = time.monotonic() + timeout_s
    deleted = deleted_topic(admin, topic, topic_id)
    held, problems = _hold(admin, open_actor, topic, deleted)
    request = UndeleteTopicRequest(topic, deleted.topic_id, deleted.zxid, tuple(held))
    try:
        answer = controller.ask_until_answered(request, UndeleteTopicResponse, deadline=deadline)
    except ControllerError as error:
        raise NotUndeletedError(
            f"topic {topic} may be back or not: {error}; repeat the command"
        ) from None
    if answer.problem:
        raise NotUndeletedError("\n".join([answer.problem, *problems]))
    _await_leaders(admin, topic, deleted, deadline)
    return deleted


def deleted_topic(admin: ZkAdminStore, topic: str, topic_id: TopicId | None) -> DeletedTopic:
    """Return what is remembered of a topic that does not exist. Raises ``NotUndeletedError``.

    First it must not exist: what is read before a deletion is complete changes again.
    """
    problem = topic_name_problem(topic)
    if problem is not None:
        raise NotUndeletedError(f"topic {topic} {problem}")
    if admin.topics.read_topics([topic]):
        if topic in admin.topics.read_topics_being_deleted():
            raise NotUndeletedError(f"topic {topic} is being deleted: wait until that is done")
        raise NotUndeletedError(
            f"topic {topic} exists: delete it before the deleted one can come back"
        )
    for deleted in _remembered(admin):
        if deleted.topic == topic and topic_id in (None, deleted.topic_id):
            return deleted
    which = f"topic {topic}" if topic_id is None else f"topic {topic} with the id {topic_id}"
    raise NotUndeletedError(
        f"{which} cannot come back: no deletion of it is remembered;"
        f" `{program()} topics undelete` lists the topics that can"
    )


def _hold(
    admin: ZkAdminStore, open_actor: OpenActor, topic: str, deleted: DeletedTopic
) -> tuple[list[HeldLogs], list[str]]:
    """Return what brokers hold, and a sentence for each that does not answer."""
    held: list[HeldLogs] = []
    problems: list[str] = []
    for broker_id in sorted({b for row in deleted.partitions.values() for b in row.replicas}):
        numbers = [n for n, row in deleted.partitions.items() if broker_id in row.replicas]
        request = HoldDeletedLogsRequest(topic, deleted.topic_id, tuple(numbers))
        try:
            with open_actor(control_endpoint(broker_id, admin.read_broker(broker_id))) as actor:
                answer = ask(actor, request, HoldDeletedLogsResponse, timeout_s=_HOLD_S)
        except (BrokerNotFoundError, NoControlPortError, BadDataError, RequestError) as error:
            problems.append(f"broker {broker_id} cannot be asked for its records: {error}")
            continue
        held.append(HeldLogs(broker_id, answer.broker_epoch, answer.held))
    return held, problems


def _await_leaders(admin: ZkAdminStore, topic: str, deleted: DeletedTopic, deadline: float) -> None:
    led = [TopicPartition(topic, number) for number in deleted.partitions]
    for _ in pauses(deadline):
        states = admin.topics.read_partition_states(led)
        led = [p for p in led if _has_no_leader(states.get(p))]
        if not led:
            return
    raise NotUndeletedError(
        f"topic {topic} is back, but {len(led)} partitions have no leader yet, the first: {led[0]}"
    )


def _has_no_leader(state: object) -> bool:
    leadership = getattr(state, "leader_and_isr", None)
    return leadership is None or leadership.leader == NO_LEADER
