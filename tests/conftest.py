"""A real ZooKeeper for the tests that ask for one: started once a run, a chroot a test."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import uuid
from collections.abc import Iterator
from traceback import walk_stack
from types import FrameType
from typing import TYPE_CHECKING

import hypothesis
import pytest

from regent.config.java import JavaNotFoundError
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.embedded.embedded_zookeeper import EmbeddedZooKeeper

_REPORTS = ("pytest_runtest_makereport", "pytest_runtest_logreport", "pytest_terminal_summary")

if TYPE_CHECKING:
    from tests.support.stage import Stage

# A test that takes long on a busy machine has not failed.
hypothesis.settings.register_profile("regent", deadline=None)
hypothesis.settings.load_profile("regent")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the simulation and of the conformance table."""
    parser.addoption("--seeds", type=int, default=400, help="how many histories to simulate")
    parser.addoption("--rounds", type=int, default=1, help="how often to interrupt an operation")
    parser.addoption("--seed", type=int, default=None, help="simulate this one history")
    parser.addoption("--rare-defects", action="store_true", help="search for rare defects, too")
    parser.addoption("--rewrite", action="store_true", help="write the transcripts again")
    parser.addoption("--cases", default=None, help="run the conformance cases of this file")
    parser.addoption(
        "--coordinator-cases", default=None, help="run the cases of the coordinators in this file"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let Ctrl-C end the run after the current test, whatever that test makes of it.

    Py4J and the commands turn ``KeyboardInterrupt`` into errors and exit statuses, so the test
    fails, and the run would go on. An exception inside of a report would lose all reports. The
    handler is also there where ``make test &`` ignores Ctrl-C.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number
        session.shouldstop = "Ctrl-C"
        if not any(of.f_code.co_name in _REPORTS for of, _ in walk_stack(frame)):
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def pytest_unconfigure() -> None:
    """Show a thread that a test left and that keeps Python from ending, and end with status 1."""
    faulthandler.dump_traceback_later(30, exit=True)


def pytest_collection_finish() -> None:
    """Let the garbage collector never look again at the thousands of collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Actors around a fake ZooKeeper, which stop after the test."""
    from tests.support.stage import Stage  # most test runs need no actors

    with Stage() as stage:
        yield stage


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A server that grants session timeouts from 200 ms on. Skips without Java, fails in CI."""
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), tick_time_ms=200)
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
    client.start(timeout_s=10.0)
    client.close()
    return address
