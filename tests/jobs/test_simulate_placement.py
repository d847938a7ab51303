"""``regent jobs simulate placement``, and its measures against plain counts."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest
from pyspark.sql import SparkSession

from regent.core.placement.replica_placer import Strategy, place
from regent.jobs.reports.placement_trial import (
    BLOCKS,
    INTERLEAVED,
    TrialSetting,
    failure_load,
    fewest_moves,
    place_uniformly,
    placement_request,
    rack_names,
    replicas_moved,
    strategies_to_compare,
)
from regent.jobs.simulate_placement import main


def setting(racks: int = 3, layout: str = INTERLEAVED) -> TrialSetting:
    return TrialSetting(7, 60, 3, racks, layout, 25, None, 4)


def random_rows(seed: int, brokers: int, partitions: int) -> list[list[int]]:
    rng = Random(seed)
    return [rng.sample(range(brokers), 3) for _ in range(partitions)]


@pytest.mark.spark
def test_the_simulation_uses_the_placements_of_the_placement_job(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "page.html"
    arguments = "--brokers 7 --partitions 60 --partitions-per-topic 25 --racks 3 --seed 4 --compare"
    arguments += f" --growth 2 -o json --html {page}"
    assert main(arguments.split(), spark) == 0
    assert page.read_text().count("<svg ") == 6
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert list(found["strategies"]) == ["ring", "kafka", "rack-aware", "copyset", "random"]
    for name, trial in found["strategies"].items():
        assert trial["loss"][1]["probability"] == 0
        if name == "random":
            continue
        before, after = (
            [p.replicas for p in place(placement_request(setting(), Strategy(name), added))]
            for added in (0, 2)
        )
        held = Counter(b for replicas in before for b in replicas)
        assert trial["per_broker"]["replicas"]["max"] == max(held.values())
        assert trial["copysets"] == len({frozenset(replicas) for replicas in before})
        assert trial["growth"]["recomputed"] == sum(
            len(set(new) - set(old)) for old, new in zip(before, after, strict=True)
        )
        assert sum(rack["replicas"] for rack in trial["per_rack"]) == 180
    assert found["strategies"]["ring"]["one_failure"]["heirs"]["max"] == 1


@pytest.mark.spark
def test_one_strategy_is_shown_in_detail(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "page.html"
    arguments = ["--brokers", "6", "--partitions", "40", "--growth", "0", "--html", str(page)]
    assert main(arguments, spark) == 0
    output = capsys.readouterr().out
    assert "copysets" in output
    assert "added" not in output
    text = page.read_text()
    assert text.count("<svg ") == 4
    assert "The first replica of the next partition is on the next broker" in text
    assert "Scatter width of each broker: 4 for all brokers." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--brokers 0", "0 is not in the range"),
        ("--brokers 2", "replication factor 3 is larger than the 2 available brokers"),
        ("--strategy best", "'best' is not one of 'ring', 'kafka'"),
        ("--strategy rack-aware", "rack-aware needs racks: say how many with --racks"),
        ("--brokers 5 --racks 6", "6 racks need as many brokers"),
        ("--partitions 100000000", "more than 100,000,000 replicas"),
        ("--scatter-width 4", "--scatter-width goes with strategy copyset"),
        ("--brokers 5 --strategy copyset --scatter-width 5", "scatter width must be from 1 to 4"),
        ("--brokers 5 --failures 6", "--failures 6: there are 5 brokers"),
        ("--growth -1", "-1 is not in the range"),
        ("--growth 1000000000", "1000000000 is not in the range"),
        ("--html /nowhere/page.html", "/nowhere is no directory"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2_before_spark_starts(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments.split()) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not output.out


# --- measures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_load_after_one_failure_equals_a_count_for_each_broker(seed: int):
    rows = random_rows(seed, brokers=6, partitions=30)
    load = failure_load(np.array(rows, np.int32), 7)  # one is idle
    assert load is not None
    for failed in range(7):
        leaders = Counter(next(b for b in row if b != failed) for row in rows)
        inherited = Counter(row[1] for row in rows if row[0] == failed)
        copied = Counter(next(b for b in row if b != failed) for row in rows if failed in row)
        assert load.heirs[failed] == len(inherited)
        assert load.busiest_leader[failed] == max(leaders.values())
        assert load.sources[failed] == len(copied)
        assert load.busiest_source[failed] == max(copied.values(), default=0)


def test_no_broker_takes_over_from_the_only_replica():
    assert failure_load(np.array([[0], [1]], np.int32), 2) is None


@pytest.mark.parametrize("seed", range(5))
def test_moved_replicas_are_those_on_other_brokers_than_before(seed: int):
    before, after = random_rows(seed, 6, 40), random_rows(seed + 100, 8, 40)
    moved = sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))
    assert replicas_moved(np.array(before, np.int32), np.array(after, np.int32)) == moved


@pytest.mark.parametrize("seed", range(20))
def test_no_balanced_load_is_nearer_than_the_fewest_moves(seed: int):
    rng = Random(seed)
    loads = [rng.randrange(9) for _ in range(rng.randint(1, 5))]
    floor, left = divmod(sum(loads), len(loads))
    targets = set(permutations([floor + 1] * left + [floor] * (len(loads) - left)))
    moves = [
        sum(max(0, load - wanted) for load, wanted in zip(loads, target, strict=True))
        for target in targets
    ]
    assert fewest_moves(np.array(loads)) == min(moves)


def test_random_placement_is_uniform():
    rng = np.random.default_rng(7)
    counted = Counter(map(tuple, place_uniformly(rng, 24_000, 3, 4).tolist()))
    assert set(counted) == set(permutations(range(4), 3))
    assert all(abs(count - 1000) < 160 for count in counted.values())  # 5 standard deviations


@pytest.mark.parametrize(
    ("layout", "racks", "expected"),
    [
        (INTERLEAVED, 3, "0 1 2 0 1 2 0 1 2"),
        (BLOCKS, 3, "0 0 0 1 1 2 2 1 2"),
    ],
)
def test_new_brokers_are_added_to_the_racks_in_turn(layout: str, racks: int, expected: str):
    names = rack_names(setting(racks, layout), added=2)
    assert names == [f"rack-{number}" for number in expected.split()]


def test_without_racks_no_broker_has_a_rack_and_the_rack_aware_strategy_is_omitted():
    assert rack_names(setting(0)) == [None] * 7
    assert strategies_to_compare(setting(0)) == ["ring", "kafka", "copyset", "random"]
    assert "rack-aware" in strategies_to_compare(setting(3))
