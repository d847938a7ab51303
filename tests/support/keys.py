"""Keys for tests: one pair for all processes of a test, and servers that know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from regent.core.model import BrokerId
from regent.core.security.roles import KeyOwner
from regent.transport.control.key_files import KeyPair, new_key_pair
from regent.transport.control.sockets import Context, new_context

KEYS: Final[KeyPair] = new_key_pair()


class Everybody:
    """Knows every key as one of the same owner."""

    def __init__(self, owner: KeyOwner) -> None:
        self._owner = owner

    def peer(self, key: str) -> KeyOwner:
        return self._owner

    def read_again(self, then: Callable[[], None]) -> None:
        then()


EVERYBODY_OPERATES: Final = Everybody(KeyOwner("operator"))


def everybody_is_broker(broker_id: BrokerId) -> Everybody:
    """Return a server's knowledge that takes every key for this broker's."""
    return Everybody(KeyOwner.broker(broker_id))


def context_for_test() -> Context:
    """Return a context with the key of the test."""
    return new_context(KEYS)
