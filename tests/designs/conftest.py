"""The actors of the designs have no end of their own: a process ends with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pykka import ActorRegistry


@pytest.fixture(autouse=True)
def no_actor_remains() -> Iterator[None]:
    """Remove the actors of a test from the registry: tests of other folders look at all of them."""
    before = {ref.actor_urn for ref in ActorRegistry.get_all()}
    yield
    for ref in ActorRegistry.get_all():
        if ref.actor_urn not in before:
            ActorRegistry.unregister(ref)
