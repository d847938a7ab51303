"""The cluster that a benchmark measures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regent.testing.regent_cluster import RegentCluster


@contextmanager
def own_cluster(*options: str) -> Iterator[RegentCluster]:
    """Start a cluster of three brokers in a temporary folder, for the block."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RegentCluster(
            Path(folder), "--no-placement-service", "--no-internal-topics", *options
        ) as cluster,
    ):
        yield cluster


@contextmanager
def cluster_at(bootstrap: str | None, *options: str) -> Iterator[str]:
    """Yield the bootstrap servers; without any, start a cluster with ``options`` for the block."""
    if bootstrap is not None:
        yield bootstrap
        return
    with own_cluster(*options) as cluster:
        yield cluster.bootstrap_servers
