from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from bench.__main__ import main

pytestmark = [pytest.mark.zookeeper, pytest.mark.usefixtures("zookeeper_server")]


def figures_of(*arguments: str) -> dict[str, float]:
    """Run a benchmark; return the medians of its only case."""
    done = CliRunner().invoke(main, [*arguments, "-o", "json"], catch_exceptions=False)
    (case,) = json.loads(done.stdout)["cases"]
    return {name: spread["median"] for name, spread in case["figures"].items()}


@pytest.mark.system
def test_a_new_controller_tells_stub_brokers_all_about_the_cluster() -> None:
    figures = figures_of("failover-load", "--partitions", "200", "--failovers", "1")

    # The benchmark may see the epoch later than the stubs see their requests.
    assert 0 < figures["leadership_s"] <= figures["seconds"]
    assert figures["elected_s"] > 0
    assert figures.keys() >= {"handled_s", "cpu_s", "controller_cpu_s", "zookeeper_cpu_s", "rss_mb"}
    assert figures.keys() >= {"sync_seconds", "pipelined_seconds", "ratio_to_pipelined"}
    assert figures.keys() >= {"pauses.longest_ms", "machine_pauses.longest_ms"}
    assert figures["bytes_per_partition"] > 0


@pytest.mark.nightly
@pytest.mark.system
def test_a_controller_elects_leaders_of_topics_that_are_created_in_bulk() -> None:
    figures = figures_of("create-load", "--partitions", "250", "--topic-size", "40")

    assert 0 < figures["written_s"] < figures["seconds"]


@pytest.mark.nightly
@pytest.mark.system
def test_survivors_get_the_leaders_after_the_crash_of_a_stub() -> None:
    figures = figures_of("crash-load", "--partitions", "100", "--brokers", "4")

    assert 0 < figures["leadership_s"] <= figures["seconds"]
    assert figures["leaders_elected"] == 25


@pytest.mark.nightly
@pytest.mark.system
def test_the_grid_of_the_console_follows_the_crash_of_a_stub() -> None:
    figures = figures_of("console", "--partitions", "200")

    assert figures["named_s"] > 0
    assert 0 < figures["grey_s"] <= figures["led_s"]
    assert 0 < figures["grid_bytes"] < 20_000
