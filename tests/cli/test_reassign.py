"""``reassign``: proposals, progress, and invalid command lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regent.core.model import ReplicaAssignment
from regent.core.placement.replica_placer import place_rack_aware, rack_alternated_brokers
from regent.zk.znodes import ReassignPartitionsZNode
from tests.support.fake_cluster import FakeCluster, failing

TOPICS = {"version": 1, "topics": [{"topic": "t"}]}


@pytest.fixture
def four(cluster: FakeCluster) -> FakeCluster:
    """Four brokers, and a topic on the first two of them."""
    cluster.with_brokers(4)
    cluster.put_topic("t", dict.fromkeys(range(3), (0, 1)))
    return cluster


def write(folder: Path, content: object) -> str:
    path = folder / "file.json"
    path.write_text(json.dumps(content))
    return str(path)


def moves(**replicas: list[int]) -> dict[str, object]:
    """Return a file that moves ``t_0=[…]`` and so on."""
    entries = [
        {
            "topic": name.partition("_")[0],
            "partition": int(name.partition("_")[2]),
            "replicas": r,
            "log_dirs": ["any"] * len(r),
        }
        for name, r in replicas.items()
    ]
    return {"version": 1, "partitions": entries}


# --- generate -------------------------------------------------------------------------------------


def generate(folder: Path, brokers: str, content: object = TOPICS) -> tuple[str, ...]:
    file = write(folder, content)
    return ("reassign", "--generate", "--topics-to-move-json-file", file, "--broker-list", brokers)


def test_a_proposal_follows_the_placement_algorithm(four: FakeCluster, tmp_path: Path) -> None:
    result = four.run(*generate(tmp_path, "3,2"))

    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "Current partition replica assignment"
    assert json.loads(lines[1]) == moves(t_0=[0, 1], t_1=[0, 1], t_2=[0, 1])
    assert lines[2:4] == ["", "Proposed partition reassignment configuration"]
    assert json.loads(lines[4]) == moves(t_0=[2, 3], t_1=[3, 2], t_2=[2, 3])
    assert four.json(*generate(tmp_path, "3,2")) == {
        "current": json.loads(lines[1]),
        "proposed": json.loads(lines[4]),
    }


def test_racks_count_by_default(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.with_brokers(4, racks=["a", "a", "b", "b"])
    cluster.put_topic("t", {0: (0, 1), 1: (0, 1)})
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    by_rack = rack_alternated_brokers(racks)
    spread = [list(place_rack_aware(by_rack, racks, n, 2, 0)) for n in range(2)]

    aware = cluster.json(*generate(tmp_path, "0,1,2,3"))
    blind = cluster.json(*generate(tmp_path, "0,1,2,3"), "--disable-rack-aware")

    assert aware["proposed"] == moves(t_0=spread[0], t_1=spread[1])
    assert blind["proposed"] == moves(t_0=[0, 1], t_1=[1, 2])


def test_racks_of_some_brokers_only_are_refused(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.with_brokers(2, racks=["a", None])
    cluster.put_topic("t", {0: (0,)})

    assert failing(cluster.run(*generate(tmp_path, "0,1"))) == (
        "not all brokers have a rack (broker 1 has none): give every broker one, or add"
        " --disable-rack-aware"
    )


def test_a_proposal_starts_from_the_assignment_without_ongoing_moves(
    four: FakeCluster, tmp_path: Path
) -> None:
    moving = ReplicaAssignment((2, 3, 0, 1), adding_replicas=(2, 3), removing_replicas=(0, 1))
    four.put_topic("t", {0: moving})

    answer = four.json(*generate(tmp_path, "1,2,3"))

    assert answer == {"current": moves(t_0=[0, 1]), "proposed": moves(t_0=[1, 2])}


@pytest.mark.parametrize(
    ("brokers", "topic", "problem"),
    [
        ("2,9", "t", "broker 9 is not registered; registered are 0, 1, 2, 3"),
        ("2,3", "nope", "topic nope does not exist"),
        ("2", "t", "topic t: replication factor 2 is larger than the 1 available broker"),
    ],
)
def test_an_impossible_proposal_names_the_reason(
    four: FakeCluster, tmp_path: Path, brokers: str, topic: str, problem: str
) -> None:
    content = {"topics": [{"topic": topic}]}

    assert failing(four.run(*generate(tmp_path, brokers, content))) == problem


# --- verify ---------------------------------------------------------------------------------------


def verify(folder: Path, content: object) -> tuple[str, ...]:
    return ("reassign", "--verify", "--reassignment-json-file", write(folder, content))


def test_the_progress_of_moves_is_printed_in_kafkas_words(
    four: FakeCluster, tmp_path: Path
) -> None:
    moving = ReplicaAssignment((2, 0, 1), adding_replicas=(2,), removing_replicas=(0, 1))
    four.put_topic("t", {0: (2, 3), 1: moving, 2: (0, 1)})
    wanted = moves(t_2=[2], t_0=[2, 3], t_1=[2], gone_0=[1])

    result = four.run(*verify(tmp_path, wanted))

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "Status of partition reassignment:",
        "There is no active reassignment of partition gone-0, but replica set is none rather"
        " than 1.",
        "Reassignment of partition t-0 is complete.",
        "Reassignment of partition t-1 is still in progress.",
        "There is no active reassignment of partition t-2, but replica set is 0,1 rather than 2.",
    ]
    answer = four.json(*verify(tmp_path, wanted))
    assert [row["state"] for row in answer] == [
        "not active",
        "complete",
        "in progress",
        "not active",
    ]
    assert answer[2] == {
        "topic": "t",
        "partition": 1,
        "state": "in progress",
        "replicas": [2, 0, 1],
        "target_replicas": [2],
    }


def test_requested_moves_of_another_tool_count_as_in_progress(
    four: FakeCluster, tmp_path: Path
) -> None:
    path = ReassignPartitionsZNode.PATH
    four.zookeeper.put(path, json.dumps(moves(t_0=[2, 3])).encode())

    (row,) = four.json(*verify(tmp_path, moves(t_0=[2, 3])))

    assert row["state"] == "in progress"


def test_verify_needs_no_controller(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.put_topic("t", {0: (1,)})

    assert cluster.run(*verify(tmp_path, moves(t_0=[1]))).exit_code == 0


def test_unreadable_topics_and_files_are_named(four: FakeCluster, tmp_path: Path) -> None:
    four.zookeeper.put("/brokers/topics/t", b"garbage")
    assert "topic t" in failing(four.run(*verify(tmp_path, moves(t_0=[1]))))
    assert "file.json: partitions is missing; it must be" in failing(
        four.run(*verify(tmp_path, {}))
    )


# --- command lines --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            (),
            "one of --generate, --execute, --verify, --cancel, --list, --pause, --resume is needed",
        ),
        (("--list", "--verify"), "only one of --verify, --list may be given"),
        (("--execute",), "--execute needs --reassignment-json-file"),
        (("--generate", "--broker-list", "1"), "--generate needs --topics-to-move-json-file"),
        (("--generate", "--topics-to-move-json-file", "-"), "--generate needs --broker-list"),
        (("--list", "--wait"), "--list does not take --wait"),
        (
            ("--verify", "--reassignment-json-file", "-", "--additional"),
            "does not take --additional",
        ),
        (("--cancel", "--reassignment-json-file", "/nowhere"), "No such file"),
    ],
)
def test_invalid_command_lines_are_usage_errors(
    four: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    result = four.run("reassign", *arguments)

    assert result.exit_code == 2
    assert problem in result.stderr


@pytest.mark.parametrize("brokers", ["", "1,", "a", "1,1", "-1"])
def test_a_list_of_brokers_has_ids(four: FakeCluster, tmp_path: Path, brokers: str) -> None:
    assert four.run(*generate(tmp_path, brokers)).exit_code == 2
