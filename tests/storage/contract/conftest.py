from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.core.replica_logs import PartitionLog
from tests.storage.contract.hosts import DiskHost, Host, MemoryHost, create


@pytest.fixture(params=["memory", "disk"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """Logs in memory, or on disk."""
    if request.param == "memory":
        yield MemoryHost()
        return
    disk = DiskHost(tmp_path)
    yield disk
    disk.end()


@pytest.fixture
def log(host: Host) -> PartitionLog:
    """A new, empty log."""
    return create(host)
