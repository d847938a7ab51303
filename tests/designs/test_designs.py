"""What v1 and v2 do when nothing unusual happens, and when a broker dies."""

from __future__ import annotations

import pytest

from regent.core.model import TopicPartition
from regent.designs.design_process import DESIGNS
from regent.designs.znodes import PARTITIONS_REASSIGNED, partition_name
from regent.zk.client.operations import Create
from tests.designs.design_world import DesignWorld

PARTITIONS = [TopicPartition("payments", partition) for partition in range(6)]


def replicas_of(topic_partition: TopicPartition) -> tuple[int, ...]:
    return tuple((topic_partition.partition + j) % 3 for j in range(3))


@pytest.fixture(params=DESIGNS)
def world(request: pytest.FixtureRequest) -> DesignWorld:
    world = DesignWorld(request.param, seed=1)
    for topic_partition in PARTITIONS:
        world.create(topic_partition, replicas_of(topic_partition))
    return world


def test_the_preferred_replica_leads_first(world: DesignWorld):
    assert [world.leader(p) for p in PARTITIONS] == [0, 1, 2, 0, 1, 2]


def test_records_are_committed_when_all_in_sync_replicas_have_them(world: DesignWorld):
    outcomes = [world.produce(world.leader(p), p, "a", "b") for p in PARTITIONS]
    world.time.run_for(1_000)
    assert outcomes == [[True]] * 6
    assert all(world.committed(b, p) == ["a", "b"] for p in PARTITIONS for b in range(3))


def test_only_a_leader_accepts_records(world: DesignWorld):
    outcome = world.produce(1, PARTITIONS[0], "a")
    world.time.run_for(1_000)
    assert outcome == [False]


def test_another_in_sync_replica_leads_when_the_leader_dies(world: DesignWorld):
    world.produce(0, PARTITIONS[0], "a")
    world.time.run_for(1_000)
    world.crash(0)
    world.time.run_for(3_000)
    assert world.leader(PARTITIONS[0]) in (1, 2)
    assert world.leader(PARTITIONS[1]) == 1
    outcome = world.produce(world.leader(PARTITIONS[0]), PARTITIONS[0], "b")
    world.time.run_for(60_000)
    assert outcome == [True]
    assert world.committed(1, PARTITIONS[0]) == world.committed(2, PARTITIONS[0]) == ["a", "b"]
    assert set(world.isr(PARTITIONS[0])) == {1, 2}


def test_a_broker_that_comes_back_follows_and_is_in_sync_again(world: DesignWorld):
    world.crash(0)
    world.time.run_for(3_000)
    leader = world.leader(PARTITIONS[0])
    world.produce(leader, PARTITIONS[0], "a")
    world.time.run_for(60_000)
    world.start(0)
    world.time.run_for(5_000)
    assert world.leader(PARTITIONS[0]) == leader
    assert world.committed(0, PARTITIONS[0]) == ["a"]
    assert set(world.isr(PARTITIONS[0])) == {0, 1, 2}


def test_in_v2_a_leader_whose_partition_moves_away_leaves_the_lock_to_others():
    world = DesignWorld("v2", seed=1, count=4)
    world.create(PARTITIONS[0], (0, 1, 2))
    request = f"{PARTITIONS_REASSIGNED}/{partition_name(PARTITIONS[0])}"
    world.admin.multi([Create(request, b"1,3")])
    world.time.run_for(5_000)
    assert world.leader(PARTITIONS[0]) == 1
    outcome = world.produce(1, PARTITIONS[0], "a")
    world.time.run_for(5_000)
    assert outcome == [True]
    assert set(world.isr(PARTITIONS[0])) == {1, 3}


def test_a_session_that_expires_costs_the_leadership_and_nothing_else(world: DesignWorld):
    world.end_session(0)
    world.time.run_for(100)
    assert not world.is_registered(0)
    world.produce(0, PARTITIONS[0], "a")
    world.time.run_for(60_000)
    assert len(world.believers(PARTITIONS[0])) == 1


def test_a_partition_without_live_in_sync_replicas_has_no_leader(world: DesignWorld):
    for broker_id in (1, 2):
        world.crash(broker_id)
    world.produce(0, PARTITIONS[0], "a")
    world.time.run_for(60_000)
    assert world.isr(PARTITIONS[0]) == (0,)
    world.crash(0)
    world.start(1)
    world.time.run_for(60_000)
    assert world.believers(PARTITIONS[0]) == []
    world.start(0)
    world.time.run_for(5_000)
    assert world.leader(PARTITIONS[0]) == 0
    assert world.committed(1, PARTITIONS[0]) == ["a"]


def test_a_late_answer_to_a_former_process_of_a_follower_is_not_appended(world: DesignWorld):
    world.produce(0, PARTITIONS[0], "a")
    world.time.run_for(100)
    world.cut(0, 1)
    world.produce(0, PARTITIONS[0], "b")
    world.time.run_for(100)
    world.crash(1)
    world.start(1)
    world.time.run_for(100)
    world.mend()
    world.time.run_for(1_000)
    assert world.committed(1, PARTITIONS[0]) == ["a", "b"]


def test_a_broker_that_died_forgets_what_it_had_not_written_to_its_disk(world: DesignWorld):
    world.produce(0, PARTITIONS[0], "a")
    world.time.run_for(10_000)
    world.produce(0, PARTITIONS[0], "b")
    world.time.run_for(100)
    assert world.committed(1, PARTITIONS[0]) == ["a", "b"]
    world.crash(1)
    world.cut(0, 1)
    world.start(1)
    world.time.run_for(100)
    assert world.records(1, PARTITIONS[0]) == world.committed(1, PARTITIONS[0]) == ["a"]


def test_bad_names_and_commands_are_dropped_with_one_line_each(caplog: pytest.LogCaptureFixture):
    world = DesignWorld("v2", seed=1)
    world.time.run_for(100)
    world.server.put("/admin/partitions_add/nonsense", b"0,1,2")
    world.server.put("/admin/partitions_add/ids-0", b"zero")
    world.server.put("/brokers/state/0/command-", b"dance;payments;0;1", is_sequential=True)
    world.create(PARTITIONS[0], replicas_of(PARTITIONS[0]))
    assert world.leader(PARTITIONS[0]) == 0
    lines = {record.message for record in caplog.records if record.levelname == "WARNING"}
    assert lines == {
        "/admin/partitions_add/nonsense is ignored, delete it: not the name of a partition:"
        " 'nonsense'",
        "/admin/partitions_add/ids-0 is ignored, delete it: not a list of broker ids: b'zero'",
        "/brokers/state/0/command-0000000000 is dropped: not a state change: b'dance;payments;0;1'",
    }
