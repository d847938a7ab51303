"""Every benchmark that measures any cluster, with tiny sizes, on one cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from regent.testing.regent_cluster import cluster

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.usefixtures("zookeeper_server")]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with cluster() as running:
        yield running.bootstrap_servers


@pytest.mark.parametrize(
    ("command", "figures"),
    [
        ("create --topics 2 --partitions 2", {"answered_s", "seconds", "cpu_s"}),
        ("delete --topics 2 --partitions 2", {"answered_s", "seconds", "cpu_s"}),
        (
            "idle --partitions 2 --seconds 0.2 --settle 0",
            {"cpu_percent", "wakeups_per_broker_s"},
        ),
        ("memory --partitions 2 --settle 0", {"rss_mb", "pss_mb"}),
        (
            "produce --size 100 --partitions 2 --acks 1 --codec zstd --seconds 0.1",
            {"records_per_s", "mb_per_s", "cpu_s_per_gb", "stored_per_byte"},
        ),
        ("latency --size 100 --partitions 2 --seconds 0.3", {"p50_ms", "p99_ms", "p999_ms"}),
    ],
)
def test_a_cluster_is_measured(bootstrap: str, command: str, figures: set[str]) -> None:
    arguments = [*command.split(), "--bootstrap", bootstrap, "-o", "json"]

    done = CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert json.loads(done.stdout)["cases"][0]["figures"].keys() >= figures


@pytest.mark.timeout(180)
def test_a_secured_cluster_is_measured_beside_a_plain_one() -> None:
    options = "--no-kafka --rounds 1 --seconds 0.1 --partitions 10 --acls 3 -o json"

    done = CliRunner().invoke(main, ["secured", *options.split()], catch_exceptions=False)

    shapes = [case["shape"] for case in json.loads(done.stdout)["cases"]]
    measured = {shape["measured"] for shape in shapes if shape.get("secured")}
    assert measured == {"start", "produce", "consume", "failover"}
    assert {shape["measured"] for shape in shapes if "ratio" in shape} == {"produce", "consume"}
