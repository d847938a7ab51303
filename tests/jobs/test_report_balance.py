"""``regent jobs report balance`` as a command, against plain counts."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from regent.jobs import plan
from regent.jobs.report_balance import main

RACKS = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: None}


@pytest.fixture
def assignment(tmp_path: Path) -> list[dict[str, Any]]:
    """Write an assignment with leaders and racks; broker 7 is not listed, and 5 is idle."""
    rng = Random(1)
    rows: list[dict[str, Any]] = []
    for partition in range(40):
        replicas = rng.sample([0, 1, 2, 3, 4, 7], 2 + partition % 2)
        leader = rng.choice([*replicas, -1])
        rows.append({"topic": "t", "partition": partition, "replicas": replicas, "leader": leader})
    (tmp_path / "assignment.jsonl").write_text("\n".join(map(json.dumps, rows)))
    brokers = [{"id": b, "rack": rack} for b, rack in RACKS.items()]
    (tmp_path / "brokers.json").write_text(json.dumps(brokers))
    return rows


def options(tmp_path: Path) -> list[str]:
    return [
        *("--assignment", str(tmp_path / "assignment.jsonl")),
        *("--brokers", str(tmp_path / "brokers.json")),
    ]


@pytest.mark.spark
def test_the_report_equals_plain_counts(
    spark: SparkSession,
    assignment: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    arguments = [*options(tmp_path), "-o", "json"]
    assert main(arguments, spark) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)

    ids = [0, 1, 2, 3, 4, 5, 7]
    replicas = [row["replicas"] for row in assignment]
    held = Counter(b for r in replicas for b in r)
    led = Counter(row["leader"] for row in assignment)
    assert found["partitions"] == 40
    assert (found["brokers"], found["brokers_not_listed"], found["racks"]) == (7, 1, 3)
    assert found["per_broker"]["replicas"]["max"] == max(held.values())
    assert found["per_broker"]["replicas"]["min"] == 0
    assert found["per_broker"]["replicas"]["mean"] == pytest.approx(sum(held.values()) / 7)
    assert found["per_broker"]["leaders"]["max"] == max(led[b] for b in ids)
    assert found["per_broker"]["leaders"]["mean"] == pytest.approx((40 - led[-1]) / 7)
    for rack in found["per_rack"]:
        members = [b for b in ids if RACKS.get(b) == rack["rack"]]
        assert rack["brokers"] == len(members)
        assert rack["replicas"] == sum(held[b] for b in members)
        assert rack["lost_partitions"] == sum(set(r) <= set(members) for r in replicas)
    assert found["survivable_failures"] == min(map(len, replicas)) - 1
    assert found["leaderless"] == led[-1]
    assert found["leaderless_partitions"][0].startswith("t-")
    [of_seven] = [row for row in found["each_broker"] if row["broker"] == "7"]
    assert (of_seven["replicas"], of_seven["leaders"]) == (held[7], led[7])


@pytest.mark.spark
def test_the_report_is_shown_as_tables_and_as_a_page(
    spark: SparkSession,
    assignment: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    page = tmp_path / "page.html"
    assert assignment
    assert main([*options(tmp_path), "--html", str(page)], spark) == 0
    output = capsys.readouterr().out
    first, second, third = output.splitlines()[:3]
    assert " no leader and can be neither written nor read (t-" in first
    assert second == (
        "1 partition has all replicas in one rack and would be lost with it (racks b; topic t)."
    )
    assert third == "Broker 7 is not in --brokers, and 17 replicas are there."
    assert "What brokers hold" in output
    assert "LOST PARTITIONS" in output
    assert '{"job"' not in output
    text = page.read_text()
    assert text.count("<figure>") == 3
    assert "Any 1 broker can fail at once without a loss." in text


@pytest.mark.spark
def test_the_plans_that_the_verdict_proposes_can_be_made(
    spark: SparkSession,
    assignment: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    assert assignment
    monkeypatch.chdir(tmp_path)
    assert main([*options(tmp_path), "-o", "json"], spark) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_fine"], found["not_listed"], found["topics_in_one_rack"]) == (
        False,
        [7],
        ["t"],
    )
    plans = [shlex.split(remedy["command"]) for remedy in found["remedies"]]
    plans = [words for words in plans if words[:3] == ["regent", "jobs", "plan"]]
    assert [words[3] for words in plans] == [
        *("replication-factor", "replication-factor", "decommission", "rebalance")
    ]
    for words in plans:
        assert plan.main(words[3:], spark) == 0


@pytest.mark.spark
def test_no_plan_is_proposed_where_hosts_allow_no_more_evenness(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    brokers: list[dict[str, Any]] = [{"id": 0}, *({"id": b, "node_host": "m"} for b in (1, 2, 3))]
    (tmp_path / "brokers.json").write_text(json.dumps(brokers))

    def proposed(others: list[int]) -> list[dict[str, Any]]:
        pairs = [[0, others[p % 3]][:: -1 if p // 3 % 4 else 1] for p in range(24)]
        rows = [{"topic": "t", "partition": p, "replicas": pair} for p, pair in enumerate(pairs)]
        (tmp_path / "assignment.jsonl").write_text("\n".join(map(json.dumps, rows)))
        assert main([*options(tmp_path), "-o", "json"], spark) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["each_broker"][0]["of_fair_share"] == "100 %"
        return [r for r in found["remedies"] if "rebalance" in r["command"]]

    [remedy] = proposed([1, 1, 2])
    assert plan.main([*shlex.split(remedy["command"])[3:], "--dry-run"], spark) == 0
    capsys.readouterr()
    assert not proposed([1, 2, 3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--assignment", "/nowhere"], "/nowhere: no such file"),
        (["--brokers", "/nowhere.json"], "/nowhere.json cannot be read"),
        (["--html", "/nowhere/page.html"], "/nowhere is no directory"),
        (["--html", "/tmp"], "/tmp is a directory"),
        (["-o", "yaml"], "'yaml' is not one of 'table', 'json'"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2_before_spark_starts(
    assignment: list[dict[str, Any]],
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
):
    assert assignment
    assert main([*options(tmp_path), *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not output.out


def test_without_files_it_is_that_of_the_running_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["--data-dir", str(tmp_path)]) == 2
    assert "no cluster in" in capsys.readouterr().err
