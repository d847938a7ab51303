"""Regent: a replicated, partitioned log cluster with Kafka's ZooKeeper-mode controller as actors.

Each folder of the checkout is a subpackage: ``core/`` is ``regent.core``. ``pyproject.toml`` maps
the one to the other.
"""

from __future__ import annotations

from typing import Final

__version__: Final = "0.3.0"
