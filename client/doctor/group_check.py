"""Consumer groups that do not get on: records wait, members are there, and nothing is committed.

A group that has never committed anything is one of them if records arrive meanwhile.
"""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.group_states import assigned_partitions
from regent.client.wording import counted, listed
from regent.config.command_line import program
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId, EndPoint, TopicPartition
from regent.core.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from regent.core.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from regent.core.quantities import span_text
from regent.transport.kafka.api import KafkaApiKey

GROUPS: Final = "groups"
"""The name of this check."""

WATCHED_S: Final = 10.0
"""How long groups are watched: most consumers commit every five seconds."""

_LIST_GROUPS: Final = (KafkaApiKey.LIST_GROUPS, 4)  # the first version with states
_DESCRIBE_GROUPS: Final = (KafkaApiKey.DESCRIBE_GROUPS, 5)
_OFFSET_FETCH: Final = (KafkaApiKey.OFFSET_FETCH, 8)  # the first one with several groups
_LIST_OFFSETS: Final = (KafkaApiKey.LIST_OFFSETS, 5)
_LATEST: Final = -1
_NEVER: Final = -1  # the position of a group that has not committed anything yet
_CONSUMER: Final = "consumer"  # what workers of Connect have are no partitions
_WITHOUT_MEMBERS: Final = ("", "Empty", "Dead")
_ASK_S: Final = 3.0
_BETWEEN_S: Final = 1.0
_AT_ONCE: Final = 32
_NAMED: Final = 5


class _Place(NamedTuple):
    """A partition that a group reads; the broker is the group's coordinator."""

    coordinator: BrokerId
    group: str
    topic_partition: TopicPartition


_Positions = Mapping[_Place, int]
"""The committed offsets, or ``_NEVER``; those of groups without members are missing."""


def check_groups(
    cluster: ExaminedCluster, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Finding]:
    """Look at the groups that have members until each has committed something, or time is over.

    Nothing without ZooKeeper, or if no time is given. It ends at once if no records wait.
    """
    if cluster.served is None or not cluster.watched_s:
        return
    brokers = {
        broker_id: endpoint
        for broker_id, info in sorted((cluster.registrations or {}).items())
        if broker_id in cluster.settings  # it is reported that the others do not answer
        and (endpoint := SECURITY_OF_COMMAND.endpoint_of(info)) is not None
    }
    leaders = {p.topic_partition: p.leader for p in cluster.served.partitions}
    first, silent = _positions(brokers)
    yield from _not_examined(silent)
    ends = _ends({place.topic_partition for place in first}, leaders, brokers)
    waiting = {
        place: at
        for place, at in first.items()
        if (end := ends.get(place.topic_partition)) is not None and at < end
    }
    watched_s = 0.0
    while waiting and watched_s < cluster.watched_s:
        sleep(_BETWEEN_S)
        watched_s += _BETWEEN_S
        now, _ = _positions({b: brokers[b] for b in {place.coordinator for place in waiting}})
        waiting = {place: at for place, at in waiting.items() if now.get(place) == at}
    new = {place.topic_partition for place, at in waiting.items() if at == _NEVER}
    arrived = {p: end - ends[p] for p, end in _ends(new, leaders, brokers).items()}
    stuck: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    never: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for (_, group, partition), at in sorted(waiting.items()):
        if at != _NEVER:
            stuck[group][partition] = ends[partition] - at
        elif arrived.get(partition, 0) > 0:
            never[group][partition] = arrived[partition]
    for group, lags in stuck.items():
        yield _stuck(group, lags, watched_s)
    for group, lags in never.items():
        yield _without_position(group, lags, watched_s)


def _not_examined(silent: Mapping[BrokerId, str]) -> Iterator[Finding]:
    for broker_id, why in silent.items():
        name = f"broker {broker_id}"
        message = f"the groups of {name} are not examined: {why}"
        remedy = f"`{program()} groups list --lag` shows the others"
        yield Finding(GROUPS, Severity.WARNING, name, message, remedy)


def _stuck(group: str, lags: Mapping[TopicPartition, int], watched_s: float) -> Finding:
    message = (
        f"group {group} has members, and {_records_in(lags)}, but it committed nothing there for"
        f" {span_text(watched_s)}"
    )
    remedy = (
        f"`{program()} groups describe {shlex.quote(group)}` shows which member has them;"
        " restart that one"
    )
    return Finding(GROUPS, Severity.WARNING, f"group {group}", message, remedy, _facts(lags))


def _without_position(group: str, lags: Mapping[TopicPartition, int], watched_s: float) -> Finding:
    message = (
        f"group {group} has members, and has never committed anything, although"
        f" {_records_in(lags)} arrived within {span_text(watched_s)}: when it starts again, it"
        " begins where auto.offset.reset says"
    )
    remedy = "let its members commit, unless they keep their positions elsewhere"
    return Finding(GROUPS, Severity.WARNING, f"group {group}", message, remedy, _facts(lags))


def _records_in(lags: Mapping[TopicPartition, int]) -> str:
    where = f"{counted(len(lags), 'partition')} ({listed(list(lags), _NAMED)})"
    return f"{counted(sum(lags.values()), 'record')} for them in {where}"


def _facts(lags: Mapping[TopicPartition, int]) -> Mapping[str, object]:
    return {"lag": sum(lags.values()), "partitions": [str(partition) for partition in lags]}


# --- questions -----------------------------------------------------------------------------------


def _positions(brokers: Mapping[BrokerId, EndPoint]) -> tuple[_Positions, Mapping[BrokerId, str]]:
    """Return the positions of groups with members, and which brokers did not tell, and why."""
    found: dict[_Place, int] = {}
    silent: dict[BrokerId, str] = {}
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = list(threads.map(_positions_at, brokers.values()))
    for broker_id, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, str):
            silent[broker_id] = answer
        else:
            found |= {_Place(broker_id, *key): offset for key, offset in answer.items()}
    return found, silent


def _positions_at(broker: EndPoint) -> Mapping[tuple[str, TopicPartition], int] | str:
    """Return the positions of the groups that a broker coordinates, or why it does not tell."""
    try:
        listing = ask_broker(broker, _LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, _ASK_S)
        if listing.error_code != Errors.NONE:
            return f"it answers with error {listing.error_code}"
        groups = [g.group_id for g in listing.groups if g.group_state not in _WITHOUT_MEMBERS]
        if not groups:
            return {}
        asked = tuple(OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups)
        request = OffsetFetchRequest(groups=asked)
        answer = ask_broker(broker, _OFFSET_FETCH, request, OffsetFetchResponse, _ASK_S)
    except (NoAnswerError, RegentError) as error:
        return str(error)
    found = {
        (group.group_id, TopicPartition(topic.name, row.partition_index)): row.committed_offset
        for group in answer.groups
        if group.error_code == Errors.NONE
        for topic in group.topics
        for row in topic.partitions
        if row.error_code == Errors.NONE and row.committed_offset >= 0
    }
    told = {group.group_id for group in answer.groups if group.error_code == Errors.NONE}
    new = told - {group for group, _ in found}
    return found | dict.fromkeys(_assigned_at(broker, new), _NEVER) if new else found


def _assigned_at(broker: EndPoint, groups: Collection[str]) -> Iterator[tuple[str, TopicPartition]]:
    """Yield which partitions the members of groups have; nothing if the broker does not tell."""
    request = DescribeGroupsRequest(groups=tuple(sorted(groups)))
    try:
        answer = ask_broker(broker, _DESCRIBE_GROUPS, request, DescribeGroupsResponse, _ASK_S)
    except (NoAnswerError, RegentError):
        return
    for group in answer.groups:
        for member in group.members if group.protocol_type == _CONSUMER else ():
            for partition in assigned_partitions(member.member_assignment):
                yield group.group_id, partition


def _ends(
    partitions: Collection[TopicPartition],
    leaders: Mapping[TopicPartition, BrokerId],
    brokers: Mapping[BrokerId, EndPoint],
) -> Mapping[TopicPartition, int]:
    """Return the ends of partitions for consumers; those whose leaders do not tell are missing."""
    led: dict[BrokerId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for partition in partitions:
        if (leader := leaders.get(partition)) in brokers and leader is not None:
            led[leader][partition.topic].append(partition.partition)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = threads.map(lambda leader: _ends_at(brokers[leader], led[leader]), list(led))
        return {partition: end for answer in answers for partition, end in answer.items()}


def _ends_at(broker: EndPoint, topics: Mapping[str, list[int]]) -> Mapping[TopicPartition, int]:
    asked = tuple(
        ListOffsetsTopic(
            name=topic,
            partitions=tuple(
                ListOffsetsPartition(partition_index=number, timestamp=_LATEST)
                for number in numbers
            ),
        )
        for topic, numbers in topics.items()
    )
    request = ListOffsetsRequest(replica_id=-1, topics=asked)
    try:
        answer = ask_broker(broker, _LIST_OFFSETS, request, ListOffsetsResponse, _ASK_S)
    except (NoAnswerError, RegentError):
        return {}
    return {
        TopicPartition(topic.name, row.partition_index): row.offset
        for topic in answer.topics
        for row in topic.partitions
        if row.error_code == Errors.NONE
    }
