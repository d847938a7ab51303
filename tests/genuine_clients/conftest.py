"""One cluster for the clients of other projects.

With ``REGENT_TEST_BOOTSTRAP=HOST:PORT,…`` the tests run against that cluster instead, of three
brokers or more: against Apache Kafka a failure is the test's own.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from regent.config.java import JavaNotFoundError
from regent.testing.waits import scaled
from tests.genuine_clients.java_clients import JavaClients
from tests.support.breakable_cluster import BreakableCluster

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import kafka  # noqa: F401 - reads its schemas by a function of importlib that is deprecated

BOOTSTRAP = "REGENT_TEST_BOOTSTRAP"
TIMEOUT_S = scaled(20.0)

CreateTopic = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> BreakableCluster:
    """Three brokers that a test may end, if it starts them again."""
    if BOOTSTRAP in os.environ:
        pytest.skip(f"somebody else's cluster: {BOOTSTRAP} is set")
    cluster: BreakableCluster = request.getfixturevalue("breakable_cluster")
    return cluster


@pytest.fixture(scope="module")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port,…`` of a cluster of three brokers."""
    given = os.environ.get(BOOTSTRAP)
    if given:
        return given
    running: BreakableCluster = request.getfixturevalue("cluster")
    return running.bootstrap_servers


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    """An admin client of librdkafka.

    It cannot be closed, and some calls keep it alive. It logs nothing, because later tests would
    find in their output that the cluster is gone.
    """
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture(scope="session")
def java() -> Iterator[JavaClients]:
    """Kafka's Java clients. Skips without Java or without their jar, fails in CI."""
    try:
        clients = JavaClients()
    except (JavaNotFoundError, OSError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with clients:
        yield clients


@pytest.fixture
def new_topic(admin: AdminClient) -> Iterator[CreateTopic]:
    """Create a topic with a name of its own, ``create(partitions, replicas, **config)``.

    In the names of the configuration ``_`` stands for ``.``. Records may be of any age. The topics
    are deleted after the test.
    """
    created: list[str] = []

    def create(partitions: int = 1, replicas: int = 3, **config: object) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        config = {"retention_ms": -1, **config}
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        wanted = NewTopic(name, partitions, replicas, config=settings)
        admin.create_topics([wanted])[name].result(TIMEOUT_S)
        created.append(name)
        return name

    yield create
    if created:
        for deleted in admin.delete_topics(created).values():
            deleted.exception(TIMEOUT_S)  # some tests have deleted theirs
