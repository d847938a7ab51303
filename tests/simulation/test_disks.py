"""The simulated disks: which logs a broker still has to delete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regent.core.model import TopicPartition
from tests.simulation.disk import Disk
from tests.simulation.file_disk import FileDisks
from tests.simulation.simulated_logs import SimulatedDisk

P0 = TopicPartition("payments", 0)
TOPIC_ID = "payments, the first"


@pytest.fixture(params=["memory", "files"])
def disk(request: pytest.FixtureRequest) -> Iterator[SimulatedDisk]:
    """A disk with a log of P0 in the directory that may be unreadable at a start."""
    disks = FileDisks(0)
    with disks.used():
        disk: SimulatedDisk = Disk(0, int) if request.param == "memory" else disks.make(0, int)
        disk.get_or_create(P0, TOPIC_ID, is_new=True)
        yield disk


def test_a_log_is_stray_after_its_replica_was_created_in_another_directory_until_it_is_used_again(
    disk: SimulatedDisk,
) -> None:
    disk = disk.start_broken()
    assert disk.kept_topic_id(P0) == TOPIC_ID, "it may be readable at the next start"
    disk.get_or_create(P0, TOPIC_ID, is_new=True)
    assert disk.kept_topic_id(P0) == TOPIC_ID
    disk.delete(P0)
    assert disk.kept_topic_id(P0) == "none"
    disk = disk.repair(has_its_data=True)
    assert P0 in disk.hosted()
    assert disk.kept_topic_id(P0) == "none"
    disk.get_or_create(P0, TOPIC_ID, is_new=False)
    assert disk.kept_topic_id(P0) == TOPIC_ID
