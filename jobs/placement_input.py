"""The input of ``place``: every error is found before a job of Spark runs."""

from __future__ import annotations

import reprlib
import secrets
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from regent.client.cluster_connection import zookeeper_address
from regent.core.admin.topic_settings import (
    similar_names,
    topic_config_conflict,
    topic_config_problem,
)
from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.core.placement.replica_placer import LEAST_LOADED, RANDOM, Strategy, check
from regent.core.protocol.messages.topics import CreatableTopicConfig
from regent.core.protocol.placement import (
    PlacementBroker,
    PlacementSpec,
    PlaceTopicsRequest,
    hosts_of,
)
from regent.core.setting import text_of
from regent.core.topic_validation import TopicNames, topic_name_problem
from regent.jobs.assignment_source import ZOOKEEPER
from regent.jobs.brokers_file import PlannedBroker, read_brokers
from regent.jobs.command import InputError, cluster_admin
from regent.jobs.files import JobFiles
from regent.jobs.json_list import Given, field_of, read_json_list
from regent.jobs.topic_writer import check_new_topics
from regent.zk.stores.admin_store import ZkAdminStore

_TOPICS_AT_ONCE: Final = 1_000
_KEYS: Final = ("topic", "partitions", "replication_factor", "start_partition", "config")


@dataclass(frozen=True, slots=True)
class PlacementOrder:
    """The request to place, and where its result goes."""

    request: PlaceTopicsRequest
    room: Mapping[BrokerId, int]  # the free capacity of brokers, in replicas, where it is known
    configs: Mapping[str, tuple[CreatableTopicConfig, ...]]  # of the topics to create
    zookeeper: str | None  # address, if needed

    @property
    def partitions(self) -> int:
        """The number of partitions to place."""
        return sum(spec.partitions for spec in self.request.topics)


def read_order(options: Mapping[str, Any], files: JobFiles) -> PlacementOrder:
    """Read and check the files of the command line, and ZooKeeper if it is named.

    Raises ``InputError``, ``PlacementError``, ``NoClusterError``, ``BadDataError``.
    """
    specs, configs = read_topics(options["topics"], files)
    counts_replicas = options["brokers"] == ZOOKEEPER and options["start_index"] == LEAST_LOADED
    locate = partial(zookeeper_address, options["zookeeper"], options["data_dir"])
    brokers = read_brokers(options["brokers"], locate, files)
    address = locate() if counts_replicas or options["apply"] else None
    with nullcontext() if address is None else cluster_admin(address) as admin:
        if admin and counts_replicas:
            # Replicas of the topics to place do not count, so that a command repeated after an
            # interruption places them the same way.
            counts = _replica_counts(admin, {spec.topic for spec in specs})
            brokers = tuple(b._replace(replica_count=counts[b.broker_id]) for b in brokers)
        request = placement_request(options, specs, brokers)
        if admin and options["apply"]:
            check_new_topics(admin, request, configs)
    room = {b.broker_id: b.capacity - b.replica_count for b in brokers if b.capacity is not None}
    return PlacementOrder(request, room, configs, address)


def placement_request(
    options: Mapping[str, Any], specs: tuple[PlacementSpec, ...], brokers: tuple[PlannedBroker, ...]
) -> PlaceTopicsRequest:
    """Return the request with the options of ``strategy_options``, a seed and a scatter width.

    Raises ``PlacementError``; and ``InputError`` if it needs racks and there are none.
    """
    seed = options["seed"]
    is_drawn = seed is None and options["start_index"] == RANDOM
    request = PlaceTopicsRequest(
        topics=specs,
        brokers=tuple(PlacementBroker(b.broker_id, b.rack, b.replica_count) for b in brokers),
        strategy=options["strategy"],
        start_index=options["start_index"],
        index=options["index"],
        seed=secrets.randbits(32) if is_drawn else seed or 0,
        scatter_width=options["scatter_width"] or 0,
        copyset_seed=seed or 0,  # never random, so that later topics share the copysets
        hosts=hosts_of((b.broker_id, b) for b in brokers),
    )
    check(request)
    if request.strategy == Strategy.RACK_AWARE and brokers[0].rack is None:
        raise InputError(
            "--strategy rack-aware needs the rack of each broker, and no broker has one:"
            " add the racks, or choose --strategy kafka"
        )
    return request


# --- topics ---------------------------------------------------------------------------------------


def read_topics(
    given: Given, files: JobFiles
) -> tuple[tuple[PlacementSpec, ...], dict[str, tuple[CreatableTopicConfig, ...]]]:
    """Return the topics of a file or a list, and the configuration of those that have one."""
    specs = []
    names = TopicNames(())
    configs = {}
    for where, row in read_json_list(given, "topic", files):
        if not isinstance(row, dict):
            raise InputError(f"{where} must be an object, not {reprlib.repr(row)}")
        spec = _spec(row, where)
        if (problem := names.collision_problem(spec.topic)) is not None:
            raise InputError(f"{where}: {problem.message}")
        names.add(spec.topic)
        specs.append(spec)
        if row.get("config") is not None:
            configs[spec.topic] = _config(spec.topic, row["config"])
    return tuple(specs), configs


def _spec(row: Mapping[str, Any], where: str) -> PlacementSpec:
    for key in row:
        if key not in _KEYS:
            raise InputError(
                f"{where}: {reprlib.repr(key)} is unknown; {similar_names(key, _KEYS)}"
            )
    topic = field_of(row, "topic", where, "a text", lambda text: type(text) is str)
    problem = topic_name_problem(topic)
    if problem:
        raise InputError(f"{where}: the name of topic {reprlib.repr(topic)} {problem}")
    return PlacementSpec(
        topic,
        field_of(row, "partitions", where, "a whole number", _is_number),
        field_of(row, "replication_factor", where, "a whole number", _is_number),
        field_of(row, "start_partition", where, "a whole number", _may_be_number) or 0,
    )


def _is_number(value: object) -> bool:
    return type(value) is int


def _may_be_number(value: object) -> bool:
    return value is None or type(value) is int


def _config(topic: str, config: object) -> tuple[CreatableTopicConfig, ...]:
    if not isinstance(config, dict):
        raise InputError(f"topic {topic}: config must be an object")
    texts = {}
    for name, value in config.items():
        if not isinstance(value, str | int | float):
            raise InputError(f"topic {topic}: config {name} must be a text or a number")
        texts[name] = text_of(value)
        problem = topic_config_problem(name, texts[name])
        if problem:
            raise InputError(f"topic {topic} config {name} {problem}")
    conflict = topic_config_conflict(texts, {})
    if conflict:
        raise InputError(f"topic {topic} config: {conflict}")
    return tuple(CreatableTopicConfig(name=name, value=text) for name, text in texts.items())


# --- brokers --------------------------------------------------------------------------------------


def _replica_counts(admin: ZkAdminStore, except_topics: Collection[str]) -> Counter[BrokerId]:
    counts: Counter[BrokerId] = Counter()
    topics = [topic for topic in admin.topics.read_topic_names() if topic not in except_topics]
    for first in range(0, len(topics), _TOPICS_AT_ONCE):
        for topic in admin.topics.read_topics(topics[first : first + _TOPICS_AT_ONCE]).values():
            if not isinstance(topic, BadDataError):
                for assignment in topic.partitions.values():
                    counts.update(assignment.replicas)
    return counts
