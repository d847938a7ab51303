"""Two brokers of this project with one listener each, beside which brokers of Kafka are started."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.command_line import COMMAND
from regent.config.java import JavaNotFoundError
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import scaled
from tests.kafka_brokers.genuine_broker import JARS, TOOLS, VERSION
from tests.kafka_brokers.mixed_cluster import LOG_DIRS, MixedCluster
from tests.kafka_brokers.moved_cluster import MovedCluster
from tests.support.free_ports import free_ports
from tests.support.maven_jars import JarsUnavailableError

OURS = (0, 1)
MIXED_SETTINGS = {
    "auto.leader.rebalance.enable": "false",  # the tool elects
    "replica.high.watermark.checkpoint.interval.ms": 1_000,
}
MIXED_SHAPES = {"two-of-ours": (2, 3), "one-of-ours": (3,)}


@pytest.fixture(scope="session")
def jars(request: pytest.FixtureRequest) -> None:
    """Skip without Java or without the jars of Kafka's brokers, fail in CI.

    Without nightly tests only those of one version are needed.
    """
    is_nightly = any(item.get_closest_marker("nightly") for item in request.session.items)
    try:
        for version in JARS if is_nightly else (VERSION,):
            JARS[version].fetched()
        if is_nightly:
            TOOLS.fetched()
    except (JavaNotFoundError, JarsUnavailableError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def cluster(jars: None, tmp_path: Path) -> Iterator[RegentCluster]:
    """Two brokers; their only listener is for clients and brokers, as Kafka's usually is."""
    del jars
    listeners = [
        part
        for broker, port in zip(OURS, free_ports(len(OURS)), strict=True)
        for part in ("--broker-setting", f"{broker}:listeners=PLAINTEXT://127.0.0.1:{port}")
    ]
    options = ("--brokers", "2", "--no-placement-service", "--no-internal-topics", *listeners)
    with RegentCluster(tmp_path / "regent", *options) as running:
        yield running


@pytest.fixture
def jaas(cluster: RegentCluster) -> Path:
    """The file with which a broker of Kafka logs in to ZooKeeper."""
    command = [*COMMAND, "zookeeper", "client-config", "--data-dir", str(cluster.data_dir)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=scaled(30.0))
    return cluster.data_dir / "zookeeper-client.jaas"


@pytest.fixture(
    scope="module",
    params=[pytest.param((v, s), id=f"{v}-{s}") for v in JARS for s in MIXED_SHAPES],
)
def mixed(
    request: pytest.FixtureRequest,
    jars: None,
    zookeeper_server: EmbeddedZooKeeper,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MixedCluster]:
    """A broker of Kafka of each version with two of ours, and two with one of ours."""
    del jars
    version, shape = request.param
    folder = tmp_path_factory.mktemp("mixed")
    zookeeper = f"{zookeeper_server.address}/{folder.name}"
    with MovedCluster(
        folder, zookeeper, version=version, settings=MIXED_SETTINGS, log_dirs=LOG_DIRS
    ) as cluster:
        for broker in MIXED_SHAPES[shape]:
            cluster.follow("move", broker)
        yield MixedCluster(cluster, version, 1, 3, 2)
