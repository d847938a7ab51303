"""The pytest plugin: the fixtures ``regent_cluster``, ``regent_topic`` and ``regent_topics``.

pytest finds it by the entry point ``regent``. It imports nothing heavy until a test uses a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from regent.testing.regent_cluster import RegentCluster

_CLUSTER: pytest.StashKey[RegentCluster] = pytest.StashKey()


class CreateTopic(Protocol):
    """Creates a topic with a unique name and returns the name."""

    def __call__(
        self,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create it; without ``replication_factor`` every broker has a replica."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the session's cluster, for the command line and for ini files."""
    group = parser.getgroup("regent", "Regent: a real cluster for tests")
    group.addoption(
        "--regent-brokers", type=int, default=None, help="how many brokers (ini: regent_brokers)"
    )
    group.addoption(
        "--regent-config",
        type=Path,
        default=None,
        help="TOML file with settings of the brokers (ini: regent_config)",
    )
    group.addoption(
        "--regent-timeout-factor",
        type=float,
        default=None,
        metavar="FACTOR",
        help="multiplies all limits of time, for a slow machine (ini: regent_timeout_factor;"
        " environment: REGENT_TIMEOUT_FACTOR)",
    )
    parser.addini("regent_timeout_factor", "multiplies all limits of time, for a slow machine")
    parser.addini("regent_brokers", "how many brokers the fixture regent_cluster has", default="3")
    parser.addini("regent_config", "TOML file with settings of these brokers", type="paths")


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment variable that the limits are multiplied with."""
    given = config.getoption("--regent-timeout-factor") or config.getini("regent_timeout_factor")
    if given:
        from regent.testing.waits import TIMEOUT_FACTOR_VARIABLE

        os.environ[TIMEOUT_FACTOR_VARIABLE] = str(given)


@pytest.fixture(scope="session")
def regent_cluster(request: pytest.FixtureRequest) -> Iterator[RegentCluster]:
    """A cluster for the session; ``heal`` is called before each test that uses it."""
    from regent.testing.regent_cluster import cluster

    config = request.config
    given_brokers = config.getoption("--regent-brokers")
    brokers = int(config.getini("regent_brokers")) if given_brokers is None else given_brokers
    if brokers < 1:
        raise pytest.UsageError(f"--regent-brokers must be at least 1, not {brokers}")
    files = [config.getoption("--regent-config"), *(config.getini("regent_config") or ())]
    given = next((path for path in files if path is not None), None)
    with cluster(brokers, config=given) as running:
        config.stash[_CLUSTER] = running
        yield running
        del config.stash[_CLUSTER]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Heal the cluster before a test that uses it."""
    running = item.config.stash.get(_CLUSTER, None)
    if running is not None and "regent_cluster" in getattr(item, "fixturenames", ()):
        running.heal()


@pytest.fixture
def regent_topics(
    regent_cluster: RegentCluster, request: pytest.FixtureRequest
) -> Iterator[CreateTopic]:
    """Create topics with unique names; they are deleted after the test."""
    from regent.testing.regent_cluster import unique_topic

    created: list[str] = []

    def create(
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        topic = unique_topic(request.node.name)
        regent_cluster.create_topic(topic, partitions, replication_factor, config)
        created.append(topic)
        return topic

    yield create
    regent_cluster.heal()
    for topic in created:
        regent_cluster.delete_topic(topic)


@pytest.fixture
def regent_topic(regent_topics: Callable[..., str]) -> str:
    """The name of a new topic with one partition and a replica on every broker."""
    return regent_topics()
