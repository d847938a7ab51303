"""The partitions of internal topics, as brokers that have just started come to know them."""

from __future__ import annotations

from collections.abc import Iterable

from regent.core.coordinator.partition_for import (
    UNKNOWN_PARTITION,
    AwaitedLeaderships,
    CoordinatorPartitions,
    partition_for,
)
from regent.core.model import TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.leader_partitions import Leadership
from regent.core.replication.metadata_cache import MetadataCache

TOPIC, KEY = "__consumer_offsets", "payments"
OLD, NEW = "o" * 22, "n" * 22


class Broker:
    """A broker that has just started, and what it is told."""

    def __init__(self) -> None:
        self.cache = MetadataCache()
        self.partitions = CoordinatorPartitions(TOPIC, self.cache, configured=7)
        self.told: list[str] = []
        self.leaderships = AwaitedLeaderships(
            self.partitions,
            lambda partition, epoch, term: self.told.append(f"elected {partition}"),
            lambda partition, epoch: self.told.append(f"resigned {partition}"),
        )

    def hear(
        self,
        numbers: Iterable[int],
        coordinated: int = 0,
        topic_id: str | None = OLD,
        *,
        lists_all: bool = False,
        leader: int = 1,
    ) -> None:
        """Take an UpdateMetadata with some partitions of the topic."""
        rows = tuple(UpdateMetadataPartition(n, 1, leader, 0, (1,), 0, (1,), ()) for n in numbers)
        topics = (UpdateMetadataTopic(TOPIC, topic_id, rows, coordinated),) if rows else ()
        request = UpdateMetadataRequest(topics, (), lists_all=lists_all)
        self.cache.update(ControlHeader(1, 1, 1), request)

    def lead(self, partition: int, topic_id: str | None = OLD, term: int | None = 3) -> None:
        """Begin or end to lead a partition."""
        led = Leadership(TopicPartition(TOPIC, partition), term, 3, topic_id)
        self.leaderships.add(led)


def test_the_number_is_that_of_the_controller_however_many_partitions_it_lists():
    broker = Broker()
    broker.hear([0], coordinated=50)
    assert broker.partitions.of(KEY) == partition_for(KEY, 50)
    broker.hear(range(50), coordinated=50, lists_all=True)
    assert broker.partitions.of(KEY) == partition_for(KEY, 50)


def test_no_number_is_counted_in_a_list_that_may_lack_partitions():
    broker = Broker()
    assert broker.partitions.of(KEY) == UNKNOWN_PARTITION
    broker.hear([0, 1, 2])  # of a controller of an earlier version
    assert broker.partitions.of(KEY) == UNKNOWN_PARTITION
    broker.hear(range(50), lists_all=True)
    assert broker.partitions.of(KEY) == partition_for(KEY, 50)


def test_no_number_is_counted_in_a_list_with_a_gap():
    broker = Broker()
    broker.hear([*range(5), *range(6, 50)], lists_all=True)
    assert broker.partitions.of(KEY) == UNKNOWN_PARTITION
    told = Broker()
    told.hear([*range(5), *range(6, 50)], coordinated=50, lists_all=True)
    assert told.partitions.of(KEY) == partition_for(KEY, 50)


def test_the_configured_number_is_that_of_a_topic_which_does_not_exist():
    broker = Broker()
    broker.hear([], lists_all=True)
    assert broker.partitions.of(KEY) == partition_for(KEY, 7)
    broker.hear([3], coordinated=10)
    assert broker.partitions.of(KEY) == partition_for(KEY, 10)


def test_a_topic_created_again_has_a_number_of_its_own():
    broker = Broker()
    broker.hear(range(50), coordinated=50, lists_all=True)
    broker.hear([1], coordinated=10, topic_id=NEW)
    assert broker.partitions.of(KEY) == partition_for(KEY, 10)
    broker.hear([1], coordinated=50, topic_id=OLD, leader=-2)  # a late removal of the earlier one
    assert broker.partitions.of(KEY) == partition_for(KEY, 10)
    broker.hear([1], coordinated=10, topic_id=NEW, leader=-2)
    assert broker.partitions.of(KEY) == partition_for(KEY, 7)


def test_added_partitions_are_not_used_and_there_is_a_warning():
    broker = Broker()
    broker.hear(range(50), coordinated=50, lists_all=True)
    assert not broker.partitions.warnings
    broker.hear(range(50, 60), coordinated=50)
    assert broker.partitions.of(KEY) == partition_for(KEY, 50)
    (warning,) = broker.partitions.warnings
    assert "__consumer_offsets has 60 partitions, but only the first 50 are used" in warning


def test_leaderships_wait_for_the_number():
    broker = Broker()
    broker.lead(3)
    broker.lead(4)
    broker.lead(4, term=None)
    broker.leaderships.on_metadata_changed()
    assert "elected" not in " ".join(broker.told)
    broker.hear([0], coordinated=50)
    broker.leaderships.on_metadata_changed()
    assert [line for line in broker.told if line.startswith("elected")] == ["elected 3"]
    assert not broker.leaderships


def test_leaderships_of_a_topic_created_again_wait_for_its_number():
    broker = Broker()
    broker.hear(range(50), coordinated=50, lists_all=True)
    broker.lead(3)
    broker.lead(3, NEW)  # LeaderAndIsr may come before UpdateMetadata
    assert broker.told == ["elected 3", "resigned 3"]
    broker.hear([3], coordinated=10, topic_id=NEW)
    broker.leaderships.on_metadata_changed()
    assert broker.told[2:] == ["elected 3"]


def test_leaderships_of_a_new_topic_wait_although_all_others_are_known():
    broker = Broker()
    broker.hear([], lists_all=True)
    broker.lead(3)
    assert broker.told == ["resigned 3"]
    broker.hear([3], coordinated=10)
    broker.leaderships.on_metadata_changed()
    assert broker.told[1:] == ["elected 3"]
