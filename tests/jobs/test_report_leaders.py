"""``regent jobs report leaders``: Kafka's imbalance, as a function and as a command."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from pyspark.sql import SparkSession

from regent.jobs.report_leaders import leaders, main

HEADER = ("topic", "partition", "replicas", "leader")
ROWS = [
    ("a", 0, [0, 1], 0),
    ("a", 1, [0, 1], 1),
    ("a", 2, [0, 2], 0),
    ("a", 3, [1, 2], 2),
    ("a", 10, [1, 0], -1),
    ("b", 0, [2, 0], 2),
]


def write(path: Path, rows: Sequence[tuple[str, int, list[int], int | None]]) -> str:
    path.write_text("\n".join(json.dumps(dict(zip(HEADER, row, strict=True))) for row in rows))
    return str(path)


@pytest.mark.spark
def test_the_report_equals_kafkas_imbalance(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "brokers.json").write_text("[0, 1, 2, 9]")
    arguments = ["--assignment", write(tmp_path / "a.jsonl", [*ROWS])]
    arguments += ["--brokers", str(tmp_path / "brokers.json"), "--threshold", "50"]
    assert main([*arguments, "-o", "json"], spark) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["per_broker"] == [
        {"broker": 0, "preferred": 3, "not_led": 1, "imbalance": pytest.approx(1 / 3)}
        | {"leading": 2, "of_fair_share": pytest.approx(1.6)},
        {"broker": 1, "preferred": 2, "not_led": 2, "imbalance": 1.0}
        | {"leading": 1, "of_fair_share": pytest.approx(0.8)},
        {"broker": 2, "preferred": 1, "not_led": 0, "imbalance": 0.0}
        | {"leading": 2, "of_fair_share": pytest.approx(1.6)},
        {"broker": 9, "preferred": 0, "not_led": 0, "imbalance": 0.0}
        | {"leading": 0, "of_fair_share": 0.0},
    ]
    assert (found["leaderless"], found["leaderless_partitions"]) == (1, ["a-10"])
    assert (found["partitions"], found["unknown"], found["above_threshold"]) == (6, 0, 1)
    assert found["imbalance"] == 0.5


@pytest.mark.spark
def test_the_report_is_shown_as_tables_and_as_a_page(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "page.html"
    arguments = ["--assignment", write(tmp_path / "a.jsonl", [*ROWS]), "--html", str(page)]
    assert main(arguments, spark) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 partition has no leader and can be neither written nor read (a-10)."
    [brokers] = [
        n for n, line in enumerate(lines) if line.startswith("Brokers, the highest imbalance")
    ]
    assert lines[brokers + 2].split()[:4] == ["1", "2", "0", "100"]
    assert "a-10" in lines[-1]
    assert page.read_text().count("<svg ") == 1


@pytest.mark.spark
def test_the_brokers_of_the_verdict_are_marked_in_a_chart_and_come_first_in_a_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of 50 brokers with 10 partitions each, 7 leads 5 more, which 30 should lead."""
    led = [
        (broker, 7 if broker == 30 and n < 5 else broker) for broker in range(50) for n in range(10)
    ]
    rows = [
        ("t", n, [first, 7 if first != 7 else 8], leader) for n, (first, leader) in enumerate(led)
    ]
    page = tmp_path / "page.html"
    assert (
        main(["--assignment", write(tmp_path / "a.jsonl", rows), "--html", str(page)], spark) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "1 broker leads fewer than 90 % of the partitions whose preferred leader it is"
        " (broker 30 leads 5 of 10).",
        "Of 50 brokers, 1 leads more than 1.2 times the average of 10 partitions (broker 7: 15),"
        " and 1 leads less than 0.8 times that (broker 30: 5).",
    ]
    for title, broker in (("highest imbalance", "30"), ("the most", "7"), ("the fewest", "30")):
        [place] = [n for n, line in enumerate(lines) if line.endswith(title)]
        assert lines[place + 2].split()[0] == broker
    labels = re.findall(r">(broker \d+: [\d.]+)<", page.read_text())
    assert labels == ["broker 7: 15", "broker 30: 5", "broker 30: 50"]


@pytest.mark.spark
def test_an_assignment_without_leaders_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = write(tmp_path / "a.jsonl", [("a", 0, [0, 1], None)])
    page = tmp_path / "page.html"
    assert main(["--assignment", path, "--html", str(page)], spark) == 2
    assert "a.jsonl names no leaders" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.spark
def test_the_sums_equal_those_of_single_partitions(spark: SparkSession):
    rng = Random(1)
    rows = [
        ("t", n, [rng.randrange(6) * 10, 99], rng.choice([None, -1, 0, 10, 20, 30, 70]))
        for n in range(300)
    ]
    columns = "topic string, partition int, replicas array<int>, leader int"
    found = leaders(spark, spark.createDataFrame(rows, columns), [5])
    known = [(replicas[0], leader) for _, _, replicas, leader in rows if leader is not None]
    ids = sorted({5} | {p for p, _ in known} | {b for _, b in known} - {-1})
    counts = (found.broker_ids, found.preferred, found.not_led, found.leading)
    assert np.stack(counts, axis=1).tolist() == [
        [
            b,
            sum(p == b for p, _ in known),
            sum(p == b != led_by for p, led_by in known),
            sum(led_by == b for _, led_by in known),
        ]
        for b in ids
    ]
    assert found.leaderless == sum(led_by == -1 for _, led_by in known)
    assert found.unknown == len(rows) - len(known)
    assert found.known + found.unknown == len(rows)
