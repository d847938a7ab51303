"""A real ZooKeeper for the tests that ask for one: started once a run, a chroot a test."""

from __future__ import annotations

import faulthandler
import gc
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
from pykka import ActorRegistry

from regent.client.command_config import SECURITY_OF_COMMAND
from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.cluster_location import KEYS_OF_COMMAND
from regent.config.java import JavaNotFoundError
from regent.testing.waits import scaled
from regent.zk.client.zookeeper_client import ZooKeeperClient

pytest_plugins = ["tests.support.runs"]

if TYPE_CHECKING:
    from tests.support.breakable_cluster import BreakableCluster
    from tests.support.stage import Stage

# A test that takes long on a busy machine has not failed. In the profile "nightly"
# (--hypothesis-profile nightly) some tests try more examples: they look for its name.
hypothesis.settings.register_profile("regent", deadline=None)
hypothesis.settings.register_profile("nightly", deadline=None)
hypothesis.settings.load_profile("regent")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the simulation and of the conformance table."""
    parser.addoption("--seeds", type=int, default=100, help="how many histories to simulate")
    parser.addoption("--rounds", type=int, default=1, help="how often to interrupt an operation")
    parser.addoption("--rare-defects", action="store_true", help="search for rare defects, too")
    parser.addoption("--rewrite", action="store_true", help="write the transcripts again")
    parser.addoption("--cases", default=None, help="run the conformance cases of this file")
    parser.addoption(
        "--coordinator-cases", default=None, help="run the cases of the coordinators in this file"
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Show a thread that a test left and that keeps Python from ending, and end with status 1.

    A worker waits for the others.
    """
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(30, exit=True)


@pytest.hookimpl(trylast=True)  # after the tests that are not wanted have gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have the most nightly tests: a file is the work of one process."""
    nightly = Counter(item.path for item in items if item.get_closest_marker("nightly"))
    items.sort(key=lambda item: -nightly[item.path])


def pytest_collection_finish() -> None:
    """Let the garbage collector never look again at the thousands of collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Blame a file for what its tests leave, and not the next file of this worker.

    A socket that nobody closed is an error when it is collected; actors are in one registry.
    """
    before = len(os.listdir("/proc/self/fd"))
    yield
    # What a command of the tests has set: in a process of its own it would be gone.
    KEYS_OF_COMMAND.given = KEYS_OF_COMMAND.data_dir = None
    SECURITY_OF_COMMAND.use(None)
    if len(os.listdir("/proc/self/fd")) > before:
        gc.collect()
    left = ActorRegistry.get_all()
    for ref in left:
        ActorRegistry.unregister(ref)
    assert left == [], "stop the actors"


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Actors around a fake ZooKeeper, which stop after the test."""
    from tests.support.stage import Stage  # most test runs need no actors

    with Stage() as stage:
        yield stage


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A server that grants session timeouts from 200 ms on. Skips without Java, fails in CI."""
    data_dir = tmp_path_factory.mktemp("zookeeper")
    server = EmbeddedZooKeeper(data_dir, tick_time_ms=200, four_letter_words="*")
    try:
        server.start()
    except JavaNotFoundError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture
def zookeeper_address(zookeeper_server: EmbeddedZooKeeper) -> str:
    """``host:port/chroot``; the chroot exists and nothing else is in it."""
    address = f"{zookeeper_server.address}/test-{uuid.uuid4().hex}"
    client = ZooKeeperClient(address, 6000, on_watch=lambda _: None)
    client.start(timeout_s=scaled(10.0))
    client.close()
    return address


@pytest.fixture(scope="session")
def whole_run_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableCluster]:
    """Three brokers for all tests of a worker; take ``cluster``, which mends it."""
    from tests.support.breakable_cluster import BreakableCluster

    with BreakableCluster(tmp_path_factory.mktemp("shared")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def breakable_cluster(whole_run_cluster: BreakableCluster) -> Iterator[BreakableCluster]:
    """Three brokers for tests with topics of their own. What is broken at the end is mended."""
    yield whole_run_cluster
    whole_run_cluster.mend()
