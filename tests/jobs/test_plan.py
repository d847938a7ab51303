"""``regent jobs plan`` as a command: its files, its messages, and its errors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from regent.jobs.plan import main
from regent.jobs.planning import selection

Assignment = dict[tuple[str, int], list[int]]
RACKS = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}


def ring(brokers: int, partitions: int, factor: int = 3, topic: str = "t") -> Assignment:
    """Return a topic placed in a ring: alternating racks are kept apart."""
    return {(topic, p): [(p + j) % brokers for j in range(factor)] for p in range(partitions)}


def write_document(path: Path, assignment: Assignment) -> Path:
    """Write a reassignment document."""
    rows = [{"topic": t, "partition": p, "replicas": r} for (t, p), r in assignment.items()]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return path


def read_document(path: Path) -> Assignment:
    """Read a reassignment document."""
    document = json.loads(path.read_text())
    assert document["version"] == 1
    rows = {(r["topic"], r["partition"]): r["replicas"] for r in document["partitions"]}
    assert len(rows) == len(document["partitions"])
    return rows


class Planner:
    """Runs the command on files."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capsys = capsys
        self.out = directory / "out"
        self.assignment = ring(6, 60)
        self.brokers: list[Any] = [{"id": b, "rack": r} for b, r in RACKS.items()]
        self.error = ""

    def run(self, goal: str, *arguments: str, spark: SparkSession | None = None) -> int:
        """Write the input and run; return the status."""
        return self.call(goal, *self.files(), "--out", str(self.out), *arguments, spark=spark)

    def call(self, *arguments: str, spark: SparkSession | None = None) -> int:
        """Run; return the status."""
        status = main(arguments, spark)
        captured = self._capsys.readouterr()
        self.error = captured.err
        self.summary = json.loads(captured.out) if captured.out else {}
        return status

    def check_nothing_to_do(self, *arguments: str, spark: SparkSession) -> None:
        """Check that a plan has nothing to do: no failure, one sentence, a field, no files."""
        assert self.run(*arguments, spark=spark) == 0
        reason = self.summary["nothing_to_do"]
        assert reason
        assert self.error == f"nothing to do: {reason}\n"
        counts = ("partitions_changed", "moves", "lower_bound", "removals", "reordered")
        assert [self.summary[name] for name in counts] == [0] * len(counts)
        assert self.summary["out"] is None
        assert not self.out.exists()

    def files(self) -> Sequence[str]:
        """Write the input; return the options that name it."""
        assignment = write_document(self._directory / "now.json", self.assignment)
        brokers = self._directory / "brokers.json"
        brokers.write_text(json.dumps(self.brokers))
        return "--assignment", str(assignment), "--brokers", str(brokers)

    def check(self) -> Assignment:
        """Check that the files agree and that the plan is valid; return it."""
        plan = read_document(self.out / "plan.json")
        rollback = read_document(self.out / "rollback.json")
        assert rollback == {partition: self.assignment[partition] for partition in plan}
        assert len(plan) == self.summary["partitions_changed"]
        for partition, replicas in plan.items():
            assert replicas != rollback[partition]
            assert len(set(replicas)) == len(replicas)
        written = json.loads((self.out / "summary.json").read_text())
        assert written.items() <= self.summary.items()
        assert sorted(path.name for path in self.out.parent.iterdir() if path.name[0] == ".") == []
        return plan


@pytest.fixture
def planner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planner:
    """A planner for six brokers in three racks, with sixty partitions."""
    return Planner(tmp_path, capsys)


@pytest.mark.spark
def test_decommission_writes_plan_and_rollback(spark: SparkSession, planner: Planner):
    planner.assignment |= ring(6, 3, topic="other")
    assert planner.run("decommission", "--from", "4", "--exclude", "o*r", spark=spark) == 0
    plan = planner.check()
    moves = {p: r for p, r in plan.items() if set(r) != set(planner.assignment[p])}
    assert len(moves) == 30
    assert len(plan) == 30 + planner.summary["reordered"]
    assert list(plan)[:30] == list(moves)
    leaders = planner.summary["leaders_per_broker"]["after"]
    assert (leaders["min"], leaders["max"]) == (12, 13)
    for partition, replicas in moves.items():
        before = planner.assignment[partition]
        assert 4 in before
        assert set(before) - {4} == set(replicas) - {1}  # the other broker of its rack
    expected = {"moves": 30, "lower_bound": 30, "partitions": 63, "brokers": 6, "rack_aware": True}
    assert expected.items() <= planner.summary.items()
    assert planner.summary["replicas_per_broker"]["after"]["max"] == 62
    assert planner.error == ""


@pytest.mark.spark
def test_replace_moves_all_replicas_of_a_broker_to_another(spark: SparkSession, planner: Planner):
    planner.brokers = [0, 1, 2, 3, 4, 7]  # 5 is lost, its rack is unknown
    arguments = ["--from", "5", "--to", "7"]
    assert planner.run("replace", *arguments, spark=spark) == 0
    for partition, replicas in planner.check().items():
        assert replicas == [7 if b == 5 else b for b in planner.assignment[partition]]
    assert planner.summary["moves"] == 30
    assert planner.summary["warnings"] == []


@pytest.mark.spark
def test_new_brokers_get_their_share(spark: SparkSession, planner: Planner):
    new = {2_000_000_070: "a", 2_000_000_080: "b", 2_000_000_090: "c"}
    racks = RACKS | new
    planner.brokers += [{"id": broker, "rack": rack} for broker, rack in new.items()]
    assert planner.run("add-brokers", spark=spark) == 0
    for partition, replicas in planner.check().items():
        assert new.keys() & set(replicas)
        assert {racks[b] for b in replicas} == set("abc")
        assert len(replicas) == len(planner.assignment[partition])
    assert planner.summary["moves"] == planner.summary["lower_bound"] == 60
    loads = planner.summary["replicas_per_broker"]
    assert (loads["before"]["min"], loads["before"]["max"]) == (0, 30)
    assert (loads["after"]["min"], loads["after"]["max"], loads["after"]["cv"]) == (20, 20, 0)


@pytest.mark.spark
def test_the_replication_factor_of_some_topics(spark: SparkSession, planner: Planner):
    planner.assignment |= ring(6, 20, factor=1, topic="logs-1") | ring(6, 10, 2, topic="logs-2")
    arguments = ["--factor", "2", "--topics", "logs-?", "--no-leaders"]
    assert planner.run("replication-factor", *arguments, spark=spark) == 0
    plan = planner.check()
    assert {topic for topic, _ in plan} == {"logs-1"}
    assert all(replicas[0] == planner.assignment[p][0] for p, replicas in plan.items())
    assert all(len(replicas) == 2 for replicas in plan.values())
    assert planner.summary["moves"] == planner.summary["lower_bound"] == 20


@pytest.mark.spark
def test_rebalance_says_when_there_is_nothing_to_move(spark: SparkSession, planner: Planner):
    planner.assignment = {("t", p): [p % 2, 2 + p % 2, 9] for p in range(30)}
    planner.brokers = [{"id": b} for b in range(5)]
    assert planner.run("rebalance", spark=spark) == 0
    plan = planner.check()
    assert planner.summary["moves"] == planner.summary["lower_bound"] == 12
    assert planner.summary["replicas_per_broker"]["after"]["cv"] == 0
    assert planner.summary["warnings"] == [
        "brokers that are not listed hold replicas: 9 (decommission --from 9 moves them)"
    ]
    planner.assignment |= plan
    planner.out = planner.out.parent / "again"
    planner.check_nothing_to_do("rebalance", spark=spark)
    assert "every broker has its fair share already (12 to 12 replicas)" in planner.error


@pytest.mark.spark
def test_a_plan_may_only_reorder_replicas(spark: SparkSession, planner: Planner):
    planner.assignment = {("t", p): sorted([p % 6, (p + 1) % 6]) for p in range(60)}
    arguments = ["rebalance", "--no-rack-aware"]
    planner.check_nothing_to_do(*arguments, "--no-leaders", spark=spark)
    assert planner.run(*arguments, spark=spark) == 0
    for partition, replicas in planner.check().items():
        assert replicas == planner.assignment[partition][::-1]
    assert (planner.summary["moves"], planner.summary["reordered"]) == (0, 10)
    leaders = planner.summary["leaders_per_broker"]
    assert (leaders["before"]["min"], leaders["before"]["max"]) == (0, 20)
    assert (leaders["after"]["min"], leaders["after"]["max"]) == (10, 10)


@pytest.mark.spark
def test_bytes_are_balanced_when_sizes_are_known(
    spark: SparkSession, planner: Planner, tmp_path: Path
):
    planner.assignment = {("t", p): [p % 6] for p in range(60)}
    size_of = {p: 100 if p % 6 == 0 else 10 for p in range(59)}
    sizes = [{"topic": "t", "partition": p, "bytes": size} for p, size in size_of.items()]
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    arguments = ["rebalance", "--sizes", str(tmp_path / "sizes.json"), "--no-rack-aware"]
    assert planner.run(*arguments, spark=spark) == 0
    plan = planner.check()
    assert (planner.summary["lower_bound"], planner.summary["moves"]) == (0, len(plan))
    spread = planner.summary["bytes_per_broker"]
    assert (spread["before"]["min"], spread["before"]["max"]) == (90, 1000)
    assert (spread["after"]["min"], spread["after"]["max"]) == (190, 280)
    assert planner.summary["replicas_per_broker"]["after"]["cv"] == 0
    moved = sum(size_of.get(partition, 0) for _, partition in plan)
    assert planner.summary["bytes_moved"] == moved
    assert planner.summary["warnings"][0] == "1 partitions have no size in --sizes, or size 0"


@pytest.mark.spark
def test_sizes_of_unknown_partitions_and_repeated_ones_are_counted(
    spark: SparkSession, planner: Planner, tmp_path: Path
):
    planner.assignment |= ring(6, 3, topic="other")
    sizes = [{"topic": "t", "partition": p, "bytes": 10} for p in [*range(62), 7, 8, 9, 9]]
    sizes += [{"topic": topic, "partition": 5, "bytes": 1} for topic in ("gone", "other")]
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    arguments = ["decommission", "--from", "4", "--sizes", str(tmp_path / "sizes.json")]
    assert planner.run(*arguments, "--exclude", "o*r", spark=spark) == 0
    assert planner.summary["warnings"][:2] == [
        "3 partitions of --sizes are not in the assignment",
        "3 partitions are in --sizes more than once: the largest counts",
    ]


@pytest.mark.spark
def test_a_broker_with_no_replicas_keeps_its_own_and_its_rack_and_host_count(
    spark: SparkSession, planner: Planner
):
    planner.assignment = {("t", p): [0, 3] for p in range(4)}
    alone: dict[str, Any] = {"id": 3, "rack": "b", "node_host": "m", "no_replicas": True}
    planner.brokers = [{"id": 0, "rack": "a"}, {"id": 1, "rack": "b", "node_host": "m"}, alone]
    assert planner.run("decommission", "--from", "0", spark=spark) == 1
    assert "hosts: t-0 has a replica on the host of each broker that can take" in planner.error
    planner.brokers.append({"id": 2, "rack": "b"})
    assert planner.run("decommission", "--from", "0", spark=spark) == 1
    assert "racks: t-0 has replicas in 2 racks" in planner.error
    planner.brokers.append({"id": 4, "rack": "a"})
    assert planner.run("decommission", "--from", "0", spark=spark) == 0
    assert {(*sorted(replicas),) for replicas in planner.check().values()} == {(3, 4)}
    assert planner.summary["warnings"] == [
        "brokers with no_replicas hold replicas: 3 (decommission --from 3 moves them)"
    ]


@pytest.mark.spark
def test_a_host_that_is_full_is_named_and_its_brokers_have_their_fair_share(
    spark: SparkSession, planner: Planner
):
    planner.assignment = {("t", p): [0, 1] for p in range(12)}
    planner.brokers = [0, *({"id": b, "node_host": "m7"} for b in (1, 2, 3))]
    assert planner.run("rebalance", spark=spark) == 0
    plan = planner.check()
    assert (planner.summary["moves"], planner.summary["lower_bound"]) == (8, 8)
    host = "host m7 has a replica of each partition, and can have no other: its brokers hold fewer"
    assert planner.summary["warnings"] == [f"{host} than the rest"]
    planner.assignment |= plan
    planner.out = planner.out.parent / "again"
    planner.check_nothing_to_do("rebalance", spark=spark)
    assert "every broker has its fair share already (4 to 12 replicas)" in planner.error


@pytest.mark.spark
def test_a_partition_in_reassignment_is_in_no_plan(
    spark: SparkSession, planner: Planner, tmp_path: Path
):
    now = tmp_path / "described.json"
    row = {"topic": "t", "partition": 0, "replicas": [0, 1, 2], "adding_replicas": [2]}
    now.write_text(json.dumps([row]))
    goal = ["rebalance", "--assignment", str(now), *planner.files()[2:], "--dry-run"]
    assert planner.call(*goal, spark=spark) == 1
    assert "partitions are being reassigned already (t-0)" in planner.error


@pytest.mark.spark
def test_a_plan_whose_partitions_need_too_much_room_is_refused_before_it_takes_the_memory(
    spark: SparkSession, planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(selection, "_CGROUP_LIMIT", limit)
    limit.write_text("50000")
    planner.brokers = [*range(40)]
    planner.assignment[("wide", 7)] = [*range(40)]
    assert planner.run("rebalance", spark=spark) == 2
    assert "61 partitions with room for 40 replicas each need 78 kB of memory" in planner.error
    assert "wide-7 has 40: leave its topic out with --exclude" in planner.error
    narrow = ["--exclude", "wide"]
    assert planner.run("replication-factor", "--factor", "20", *narrow, spark=spark) == 2
    assert "60 partitions with room for 20 replicas each need 140 kB of memory" in planner.error
    assert planner.run("replication-factor", "--factor", "5", *narrow, spark=spark) == 0
    planner.check()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("goal", "status", "message"),
    [
        ("decommission --from 9", 2, "--from: broker 9 is not listed and holds no replica"),
        ("decommission --from 0,3", 1, "racks: t-0 has replicas in 3 racks"),
        ("decommission --from 0 --topics nothing*", 2, "--topics and --exclude leave no topic"),
        ("add-brokers", 2, "every listed broker has replicas: say which are new with --new"),
    ],
)
def test_a_goal_that_the_assignment_does_not_allow_is_one_line(
    spark: SparkSession, planner: Planner, goal: str, status: int, message: str
):
    assert planner.run(*goal.split(), spark=spark) == status
    assert message in planner.error
    assert planner.error.count("\n") == 1
    assert not planner.summary
    assert not planner.out.exists()


@pytest.mark.spark
@pytest.mark.parametrize("option", ["--leaders", "--no-leaders"])
@pytest.mark.parametrize(
    "goal",
    [
        "decommission --from 6",
        "replace --from 6 --to 7",
        "add-brokers --new 5",
        "replication-factor --factor 3",
    ],
)
def test_every_kind_of_plan_can_have_nothing_to_do(
    spark: SparkSession, planner: Planner, goal: str, option: str
):
    planner.brokers = [{"id": b, "rack": r} for b, r in RACKS.items()]
    if "6" in goal.split():
        planner.brokers += [{"id": 6, "rack": "a"}, {"id": 7, "rack": "a"}]
    planner.check_nothing_to_do(*goal.split(), option, spark=spark)


@pytest.mark.spark
def test_removed_replicas_are_no_moves(spark: SparkSession, planner: Planner, tmp_path: Path):
    sizes = [{"topic": "t", "partition": p, "bytes": 10} for p in range(60)]
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    arguments = ["--factor", "2", "--sizes", str(tmp_path / "sizes.json")]
    assert planner.run("replication-factor", *arguments, spark=spark) == 0
    planner.check()
    expected = {"moves": 0, "lower_bound": 0, "bytes_moved": 0, "removals": 60, "reordered": 0}
    assert expected.items() <= planner.summary.items()


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("decommission", "Missing option '--from'"),
        ("decommission --from x", "'x' is not a broker id"),
        ("decommission --from 1,1", "broker 1 is named more than once"),
        ("decommission --from 99999999999", "broker 99999999999 is too large"),
        ("replace --from 1,2 --to 2", "broker 2 is in --from and in --to"),
        ("replace --from 0 --to 1,2", "--from has 1 broker and --to 2: name one in --to for each"),
        ("replace --from 1 --to 9", "--to: broker 9 is not one of the listed brokers"),
        ("add-brokers --new 9", "--new: broker 9 is not one of the listed brokers"),
        ("replication-factor --factor 0", "0 is not in the range"),
        ("rebalance --dry-run --execute", "--dry-run and --execute: choose one"),
        ("rebalance --assignment /nowhere", "/nowhere: no such file or directory"),
        ("rebalance --brokers /nowhere", "/nowhere cannot be read"),
        ("rebalance --out .", ". exists already: choose a new directory"),
        ("rebalance --assignment zookeeper --data-dir /nowhere", "no cluster in /nowhere"),
        ("shuffle", "No such command 'shuffle'"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2_before_spark_starts(
    planner: Planner, goal: str, message: str
):
    assert planner.run(*goal.split()) == 2
    assert message in planner.error
    assert planner.error.count("\n") == 1
    assert not planner.out.exists()


def test_the_running_cluster_is_planned_for_unless_files_are_named(
    planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # without ./data
    assert planner.call("decommission", "--from", "3", "--dry-run") != 0
    assert "no cluster" in planner.error
    without_brokers = planner.files()[:2]
    assert planner.call("decommission", *without_brokers, "--from", "3", "--dry-run") == 2
    assert "which brokers may be used? Name a file, or --brokers zookeeper" in planner.error


def test_goals_that_the_brokers_do_not_allow_are_refused_before_spark_starts(planner: Planner):
    assert planner.run("replication-factor", "--factor", "7") == 1
    assert "replication-factor: replication factor 7 needs as many brokers, and" in planner.error
    assert planner.run("decommission", "--from", "0,1,2,3,4,5") == 1
    start = "regent jobs plan decommission: --from names every listed broker, so none remains"
    assert planner.error.startswith(start)
    barred = planner.brokers[:]
    planner.brokers = [broker | {"no_replicas": True} for broker in barred]
    assert planner.run("rebalance") == 2
    assert "all brokers have no_replicas: name or start others" in planner.error
    planner.brokers = barred
    planner.brokers[2].pop("rack")
    assert planner.run("rebalance", "--rack-aware") == 2
    assert "--rack-aware: broker 2 has no rack" in planner.error


@pytest.mark.parametrize(
    "command", ["execute", "rollback", "status", "unthrottle", "pause", "resume"]
)
def test_a_directory_without_a_plan_is_named_before_a_cluster_is_looked_for(
    planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    monkeypatch.chdir(tmp_path)  # without ./data
    assert planner.call(command, "/nowhere") == 2
    assert planner.error.startswith(f"regent jobs plan {command}: /nowhere is not a plan (it has")
    assert planner.error.count("\n") == 1


def test_a_plan_is_paused_and_resumed(planner: Planner, tmp_path: Path):
    for name in ("plan.json", "rollback.json"):
        write_document(tmp_path / name, {})
    assert planner.call("pause", str(tmp_path)) == 0
    assert planner.error.startswith("paused; ")
    assert (tmp_path / "paused").exists()
    assert planner.call("resume", str(tmp_path)) == 0
    assert planner.error.startswith("it goes on; if no `execute` is running: ")
    assert not (tmp_path / "paused").exists()
