"""Stories of docs/operations.md on three secured machines: what is said, and what the page advises.

They share a cluster: each leaves it as it was.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from regent.testing.waits import eventually
from tests.support.secure_machines import (
    PASSWORD,
    TIMEOUT_S,
    Machines,
    Settings,
    consumed,
    produced,
    secure_machines,
)

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

FULL, SLOW, EMPTIED = 1, 2, 2  # brokers
DISK_MB, LEFT_MB = 400, 40  # less than log_dir_min_free_bytes is left
LOST = 0.1  # of the packets of a broken link, in each direction
MB = 1024 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def machines(folder: Path) -> Iterator[Machines]:
    with secure_machines(folder) as made, small_disk(made.folder_of(FULL)):
        made.set_up()
        made.allow_commands()
        yield made
        made.end()


@pytest.fixture(scope="module")
def clients(machines: Machines) -> Settings:
    """The settings of a client; a topic ``orders``, of three replicas, is there."""
    settings = machines.settings("admin", PASSWORD)
    create(settings, NewTopic("orders", 3, 3, config={"min.insync.replicas": "2"}))
    return settings


def create(clients: Settings, wanted: NewTopic) -> None:
    """Create a topic."""
    admin = AdminClient(clients)
    (created,) = admin.create_topics([wanted]).values()
    created.result(TIMEOUT_S)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of some megabytes, for a folder that does not exist yet."""
    folder.mkdir(mode=0o700)
    options = ("-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "tmpfs")
    if subprocess.run(["mount", *options, str(folder)], check=False, timeout=TIMEOUT_S).returncode:
        pytest.skip("this process may not mount a disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=TIMEOUT_S)


def await_told(machines: Machines, command: str, pattern: str) -> None:
    """Wait until a command says something."""

    def is_told() -> bool:
        said = machines.told(command)
        if re.search(pattern, said, re.MULTILINE):
            return True
        raise LookupError(said)

    eventually(is_told, f"{command}: {pattern}", TIMEOUT_S)


def await_health(machines: Machines) -> None:
    await_told(machines, "status", "^health +ok$")


def test_a_full_disk_is_named_and_producers_are_refused_until_there_is_room(
    machines: Machines, clients: Settings
):
    assert produced(clients, ["before"] * 30) == []
    folder = machines.folder_of(FULL)
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - LEFT_MB * MB)
    await_told(machines, "status", f"broker {FULL}: producers are refused")
    assert set(produced(clients, ["refused"] * 30)) <= {"_MSG_TIMED_OUT"}
    await_told(machines, "logs --command-config admin.properties", "orders")
    ballast.unlink()
    eventually(lambda: produced(clients, ["after"] * 30) == [], "producers are accepted", TIMEOUT_S)
    await_health(machines)


@pytest.mark.timeout(180)
def test_a_broker_that_runs_a_tenth_of_the_time_is_named(machines: Machines, clients: Settings):
    is_over = threading.Event()

    def stop_and_go() -> None:
        pid = machines.pid_of(SLOW)
        while not is_over.wait(0.1):
            os.kill(pid, signal.SIGSTOP)
            is_over.wait(0.9)
            os.kill(pid, signal.SIGCONT)

    with_pauses = threading.Thread(target=stop_and_go)
    with_pauses.start()
    try:
        assert produced(clients, ["slowly"] * 30) == []
        await_told(machines, "status", f"broker {SLOW}(: it runs| answers) slowly")
    finally:
        is_over.set()
        with_pauses.join(TIMEOUT_S)
    await_health(machines)


def test_no_record_is_lost_by_a_link_that_loses_packets_and_its_broker_is_named(
    machines: Machines, clients: Settings
):
    create(clients, NewTopic("lossy", 3, 3, config={"min.insync.replicas": "2"}))
    values = [str(number) for number in range(300)]
    with machines.losing(SLOW, LOST):
        assert produced(clients, values, "lossy") == []
        await_told(machines, "status", f"broker {SLOW}: packets get lost")
    assert consumed(clients, "after", 300, "lossy") == sorted(values)
    await_health(machines)


def test_an_emptied_broker_gets_its_replicas_again(machines: Machines, clients: Settings):
    assert produced(clients, ["kept"] * 30) == []
    machines.kill_broker(EMPTIED)
    await_told(machines, "status", f"broker {EMPTIED} not registered since .*: ")
    shutil.rmtree(machines.folder_of(EMPTIED))
    machines.start_again(EMPTIED)
    await_health(machines)
    assert list(machines.folder_of(EMPTIED).glob("log/orders-*/*.log"))


def test_a_group_that_is_behind_is_listed_with_its_lag(machines: Machines, clients: Settings):
    create(clients, NewTopic("read", 1, 3))
    assert produced(clients, ["first"] * 10, "read") == []
    consumed(clients, "reports", 10, "read")
    assert produced(clients, ["then"] * 25, "read") == []
    command = "groups list --sort lag --command-config admin.properties"
    await_told(machines, command, r"^reports +\w+ +25\b")
    described = "groups describe reports --command-config admin.properties"
    await_told(machines, described, r"read +0 +10 +35 +25\b")


def test_a_topic_that_was_deleted_by_mistake_comes_back(machines: Machines, clients: Settings):
    create(clients, NewTopic("kept", 3, 3))
    values = [str(number) for number in range(30)]
    assert produced(clients, values, "kept") == []
    machines.told("topics delete kept --yes --command-config admin.properties")
    await_told(machines, "topics undelete", "^kept ")

    def is_back() -> bool:
        said = machines.told("topics undelete kept")
        if "Topic kept is back" in said:
            return True
        raise LookupError(said)

    eventually(is_back, "the topic is back", TIMEOUT_S)
    assert consumed(clients, "restored", 30, "kept") == sorted(values)
    await_health(machines)
