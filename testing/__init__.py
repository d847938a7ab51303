"""Real clusters for the tests of applications, and faults to test them with.

With pytest, the fixtures of ``regent.testing.plugin`` are there as soon as Regent is installed.
Without it::

    from regent.testing import cluster

    with cluster(brokers=3) as regent:
        produce(regent.bootstrap_servers)
        regent.kill_leader_of("payments", 0)

Importing this package imports nothing else: pytest loads it in every project of the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regent.testing.regent_cluster import RegentCluster, cluster
    from regent.testing.waits import eventually

__all__ = ["RegentCluster", "cluster", "eventually"]


def __getattr__(name: str) -> Any:
    if name == "eventually":
        from regent.testing.waits import eventually

        return eventually
    if name in __all__:
        from regent.testing import regent_cluster

        return getattr(regent_cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
