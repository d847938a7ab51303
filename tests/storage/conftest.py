from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import Machine, create


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A broker's machine with one log directory; segments hold three batches."""
    machine = Machine(tmp_path / "one")
    yield machine
    machine.end()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Machine]:
    """A machine with two log directories."""
    machine = Machine(tmp_path / "one", tmp_path / "two")
    yield machine
    machine.end()


@pytest.fixture
def logs(machine: Machine) -> LogManager:
    """A process on the machine with one directory."""
    return machine.start()


@pytest.fixture
def disk_log(logs: LogManager) -> UnifiedLog:
    """A new log."""
    return create(logs)
