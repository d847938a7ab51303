"""How the command ``console`` finds its cluster."""

from __future__ import annotations

from typing import Any

import pytest

from regent.client.cluster_connection import Cluster
from regent.console import web_server
from regent.core.errors import RegentError
from tests.support.fake_cluster import ADDRESS, FakeCluster

BROKER = "127.0.0.1:9092"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """The clusters that were to be shown; none is served."""
    clusters: list[Cluster] = []

    def console(cluster: Cluster, *_: Any, **__: Any) -> None:
        clusters.append(cluster)
        raise RegentError("enough")

    monkeypatch.setattr(web_server, "Console", console)
    return clusters


@pytest.mark.parametrize(
    ("options", "environment", "zookeeper", "brokers"),
    [
        (("--zookeeper", ADDRESS), {}, ADDRESS, 0),
        (("--bootstrap-server", BROKER), {}, "", 1),
        ((), {"REGENT_BOOTSTRAP_SERVER": BROKER}, "", 1),
        ((), {"REGENT_BOOTSTRAP_SERVER": BROKER, "REGENT_ZOOKEEPER": ADDRESS}, ADDRESS, 0),
        (("--zookeeper", ADDRESS), {"REGENT_BOOTSTRAP_SERVER": BROKER}, ADDRESS, 0),
        (("--bootstrap-server", BROKER), {"REGENT_ZOOKEEPER": ADDRESS}, "", 1),
    ],
)
def test_the_cluster_is_found_by_zookeeper_if_it_is_known_and_by_brokers_if_they_are_named(
    cluster: FakeCluster,
    shown: list[Cluster],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    environment: dict[str, str],
    zookeeper: str,
    brokers: int,
) -> None:
    monkeypatch.delenv("REGENT_ZOOKEEPER", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert "enough" in cluster.run("console", "--port", "0", *options).stderr
    (found,) = shown
    assert found.zookeeper_address == zookeeper
    assert len(found.bootstrap) == brokers


def test_an_address_that_is_none_is_refused_before_the_console_listens(
    cluster: FakeCluster, shown: list[Cluster]
) -> None:
    result = cluster.run("console", "--port", "0", "--zookeeper", "zk1:notaport")
    assert result.exit_code == 2
    assert "'zk1:notaport'" in result.stderr
    assert shown == []
