"""The actors of a simulated world have no threads: they end with it, and nobody stops them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pykka import ActorRegistry


@pytest.fixture(autouse=True)
def _actors_end_with_their_world() -> Iterator[None]:
    yield
    for ref in ActorRegistry.get_all():
        ActorRegistry.unregister(ref)
