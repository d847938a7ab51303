from __future__ import annotations

import importlib
import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from bench.__main__ import BENCHMARKS, main
from bench.frame import benchmark, run_benchmark
from bench.result import Case, Spread, measured_cases


def counted(bootstrap: str | None = None, start: int = 1) -> Iterator[Case]:
    counted.calls.append(bootstrap)  # type: ignore[attr-defined]
    seconds = start + len(counted.calls)  # type: ignore[attr-defined]
    yield Case({"partitions": 10}, {"seconds": seconds, "cpu": {"broker_s": 0.5}, "peer": "none"})


@pytest.fixture(autouse=True)
def calls() -> list[str | None]:
    made: list[str | None] = []
    counted.calls = made  # type: ignore[attr-defined]
    return made


def test_a_result_has_the_median_and_the_spread_of_all_repetitions() -> None:
    result = run_benchmark("counted", counted, 3, {"start": 0})

    (case,) = result.cases
    assert case.shape == {"partitions": 10}
    assert case.figures == {"seconds": Spread(2, 1, 3), "cpu.broker_s": Spread(0.5, 0.5, 0.5)}
    assert case.notes == {"peer": "none"}


def test_clusters_are_measured_in_turn_in_each_repetition(calls: list[str | None]) -> None:
    result = run_benchmark("counted", counted, 2, {}, ["own", "kafka:9092"])

    assert calls == [None, "kafka:9092", None, "kafka:9092"]
    assert [case.shape["cluster"] for case in result.cases] == ["own", "kafka:9092"]


def test_a_result_as_json_names_the_machine_and_its_load() -> None:
    result = run_benchmark("counted", counted, 2, {})

    read = json.loads(result.as_json())

    assert read.keys() >= {"benchmark", "options", "machine", "started", "elapsed_s", "repetitions"}
    assert read.keys() >= {"load_before", "load_after", "cases"}
    assert read["machine"].keys() == {"processors", "processor", "memory_gb", "kernel", "python"}
    assert measured_cases(read) == result.cases


def test_a_command_has_the_options_of_the_benchmark_and_of_the_frame() -> None:
    command = benchmark(any_cluster=True)(click.option("--start", default=5)(counted))

    done = CliRunner().invoke(command, ["--repetitions", "2"])

    assert done.exit_code == 0
    row = next(line.split() for line in done.stdout.splitlines() if "seconds" in line)
    assert row == ["seconds", "6.5", "6", "7"]


def test_a_real_benchmark_runs_through_the_frame() -> None:
    done = CliRunner().invoke(main, ["compaction", "--megabytes", "1", "-o", "json"])

    cases = json.loads(done.stdout)["cases"]
    assert all(case["figures"]["seconds"].keys() == {"median", "min", "max"} for case in cases)


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_benchmark_is_a_command_of_its_name(name: str) -> None:
    module = importlib.import_module(f"bench.{BENCHMARKS[name][0]}")
    assert getattr(module, name.replace("-", "_")).name == name
