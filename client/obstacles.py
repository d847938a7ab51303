"""Why clients and commands wait: the causes that ZooKeeper and the brokers know, in words.

Every function returns whole sentences without a full stop, the most general cause first; none if
no cause is known. A question to a broker takes a second at most.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.controller_ref import ControllerRef
from regent.client.live_brokers import read_live_brokers
from regent.client.move_pause import paused_for
from regent.client.move_throttle import LISTS, RATES
from regent.client.partitions import DescribedPartition, read_partitions
from regent.client.wording import listed
from regent.core.errors import BadDataError, Errors
from regent.core.model import BrokerId, BrokerRegistration, EndPoint, TopicPartition
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.core.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from regent.core.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.stores.admin_store import ZkAdminStore

T = TypeVar("T")

_QUESTION_S: Final = 1.0
_NAMED: Final = 5
_TOPIC: Final = 2  # the resource type of DescribeConfigs
_MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
_STATES: Final[Mapping[str, str]] = {
    "PreparingRebalance": "is rebalancing: it waits until all members have joined",
    "CompletingRebalance": "is rebalancing: it waits until one of its members has assigned the"
    " partitions",
}


def record_obstacles(
    admin: ZkAdminStore, topic: str, *, group: str | None = None, in_sync: bool = False
) -> list[str]:
    """Return why records of a topic are not read, by a group if it is named, or not written.

    ``in_sync``: the writer waits for all replicas that are in sync (acks=all).
    """
    live = read_live_brokers(admin)
    partitions = read_partitions(admin, [topic]).partitions
    found = controller_obstacles(admin)
    if not partitions:
        found.append(f"topic {topic} does not exist")
    found += leader_obstacles(partitions, live)
    endpoints = _endpoints(live)
    if in_sync:
        found += _in_sync_obstacles(partitions, topic, endpoints)
    if group is not None:
        found += group_obstacles(endpoints, group)
    return found


def controller_obstacles(admin: ZkAdminStore) -> list[str]:
    """Return that there is no controller, that it is silent, or that it waits for a broker."""
    if admin.read_controller() is None:
        return ["there is no controller"]
    with ControllerRef(admin.read_controller_endpoint, client_id="obstacles") as controller:
        request, deadline = DescribeControllerRequest(), time.monotonic() + _QUESTION_S
        answer = controller.ask(request, DescribeControllerResponse, deadline=deadline)
        if answer is None:
            return [controller.failure]
    return [
        f"broker {row.broker_id} has left {row.request} of the controller unanswered for"
        f" {row.unanswered_ms / 1000:.0f} s"
        for row in answer.unanswered
    ]


def leader_obstacles(
    partitions: Iterable[DescribedPartition], live: Mapping[BrokerId, BrokerRegistration]
) -> list[str]:
    """Return which partitions have no leader, and for which brokers they wait."""
    by_reason: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        if partition.is_unavailable(live):
            by_reason.setdefault(_why_leaderless(partition, live), []).append(
                partition.topic_partition
            )
    return [
        f"{listed(named, _NAMED)} {'has' if len(named) == 1 else 'have'} no leader: {reason}"
        for reason, named in by_reason.items()
    ]


def _why_leaderless(
    partition: DescribedPartition, live: Mapping[BrokerId, BrokerRegistration]
) -> str:
    reason = partition.waiting_reason(live)
    if reason:
        return reason
    members = partition.state.leader_and_isr.isr or partition.assignment.replicas
    absent = sorted(broker for broker in members if broker not in live)
    if len(absent) == len(members):
        return f"it waits for broker {' or '.join(map(str, absent))}, which is down"
    return "the controller has not elected one yet"


def _in_sync_obstacles(
    partitions: Iterable[DescribedPartition], topic: str, brokers: Sequence[EndPoint]
) -> list[str]:
    needed = _min_insync_replicas(topic, brokers)
    few = [
        p
        for p in partitions
        if needed is not None
        and len(p.state.leader_and_isr.isr) < min(needed, len(p.assignment.replicas))
    ]
    if not few:
        return []
    missing = sorted(
        {b for p in few for b in p.assignment.replicas if b not in p.state.leader_and_isr.isr}
    )
    named = listed([p.topic_partition for p in few], _NAMED)
    return [
        f"{named}: fewer replicas are in sync than min.insync.replicas, {needed}; out of sync are"
        f" the replicas on {_named_brokers(missing)}"
    ]


def _min_insync_replicas(topic: str, brokers: Sequence[EndPoint]) -> int | None:
    resource = DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=(_MIN_INSYNC_REPLICAS,)
    )
    request = DescribeConfigsRequest(resources=(resource,))
    answer = _first_answer(
        brokers, (KafkaApiKey.DESCRIBE_CONFIGS, 1), request, DescribeConfigsResponse
    )
    configs = [row for result in answer.results for row in result.configs] if answer else []
    values = [row.value for row in configs if row.name == _MIN_INSYNC_REPLICAS and row.value]
    return int(values[0]) if values and values[0].isdecimal() else None


def group_obstacles(brokers: Sequence[EndPoint], group: str) -> list[str]:
    """Return why a group gives its members no partitions. ``brokers``: any of the live ones."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
    answer = _first_answer(
        brokers, (KafkaApiKey.FIND_COORDINATOR, 4), request, FindCoordinatorResponse
    )
    if answer is None:
        return ["no broker answers"]
    (found,) = answer.coordinators
    if found.error_code != Errors.NONE:
        return [found.error_message or f"group {group} has no coordinator yet"]
    coordinator = EndPoint("PLAINTEXT", found.host, found.port)
    described = _first_answer(
        [coordinator],
        (KafkaApiKey.DESCRIBE_GROUPS, 4),
        DescribeGroupsRequest(groups=(group,)),
        DescribeGroupsResponse,
    )
    if described is None:
        return [f"broker {found.node_id}, the coordinator of group {group}, does not answer"]
    (state,) = described.groups
    if state.error_code == Errors.COORDINATOR_LOAD_IN_PROGRESS:
        return [f"broker {found.node_id}, the coordinator of group {group}, still reads its state"]
    if state.group_state in _STATES:
        return [f"group {group} {_STATES[state.group_state]}"]
    return []


def move_obstacles(admin: ZkAdminStore, moving: Collection[TopicPartition]) -> list[str]:
    """Return why partitions that are being reassigned do not get on; a throttle is no reason."""
    live = read_live_brokers(admin)
    topics = sorted({partition.topic for partition in moving})
    wanted = set(moving)
    partitions = [
        p for p in read_partitions(admin, topics).partitions if p.topic_partition in wanted
    ]
    found = controller_obstacles(admin)
    found += leader_obstacles(partitions, live)
    for broker in sorted({b for p in partitions for b in p.assignment.adding_replicas} - set(live)):
        held = [p.topic_partition for p in partitions if broker in p.assignment.adding_replicas]
        verb = "moves" if len(held) == 1 else "move"
        found.append(f"broker {broker} is down, and {listed(held, _NAMED)} {verb} there")
    why = paused_for(admin)
    return [*found, why] if why else found


def move_throttles(admin: ZkAdminStore, moving: Collection[TopicPartition]) -> list[str]:
    """Return at which rates brokers throttle partitions that are being reassigned.

    None while moves are paused, which is by a throttle too.
    """
    if paused_for(admin):
        return []
    topics = sorted({partition.topic for partition in moving})
    partitions = read_partitions(admin, topics).partitions
    replicas = {b for p in partitions if p.topic_partition in moving for b in p.assignment.replicas}
    brokers = sorted(replicas.intersection(read_live_brokers(admin)))
    of_topics = _readable(admin.configs.read_topic_configs(topics))
    if not any(name in config for config in of_topics.values() for name in LISTS):
        return []
    rates: dict[str, list[str]] = {}
    for broker, config in _readable(admin.configs.read_broker_configs(brokers)).items():
        for rate in {config[name] for name in RATES if name in config}:
            rates.setdefault(rate, []).append(broker)
    return [
        f"replication is throttled to {rate} B/s on {_named_brokers(throttled)}"
        for rate, throttled in rates.items()
    ]


def shutdown_obstacles(admin: ZkAdminStore, broker_id: BrokerId) -> list[str]:
    """Return which leaderships a broker that stops cannot hand over."""
    found = controller_obstacles(admin)
    alone = [
        partition.topic_partition
        for partition in read_partitions(admin, admin.topics.read_topic_names()).partitions
        if partition.leader == broker_id and partition.state.leader_and_isr.isr == (broker_id,)
    ]
    if alone:
        named = listed(alone, _NAMED)
        found.append(
            f"broker {broker_id} leads partitions without another replica in sync: {named}"
        )
    return found


def _readable(
    configs: Mapping[str, Mapping[str, str] | BadDataError],
) -> dict[str, Mapping[str, str]]:
    return {name: row for name, row in configs.items() if not isinstance(row, BadDataError)}


def _named_brokers(brokers: Sequence[BrokerId] | Sequence[str]) -> str:
    return f"broker{'s' if len(brokers) > 1 else ''} {' and '.join(map(str, brokers))}"


def _endpoints(live: Mapping[BrokerId, BrokerRegistration]) -> list[EndPoint]:
    return [e for r in live.values() if (e := SECURITY_OF_COMMAND.endpoint_of(r.info)) is not None]


def _first_answer(
    brokers: Sequence[EndPoint], api: tuple[KafkaApiKey, int], request: object, answer: type[T]
) -> T | None:
    """Return the answer of the first broker that gives one."""
    deadline = time.monotonic() + _QUESTION_S
    for broker in brokers:
        try:
            return ask_broker(broker, api, request, answer, max(deadline - time.monotonic(), 0.1))
        except NoAnswerError:
            continue
    return None
