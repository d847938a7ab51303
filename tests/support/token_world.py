"""Brokers with delegation tokens over a fake ZooKeeper, and a clock that the test sets."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from itertools import count

from regent.core.security.delegation_token_manager import (
    DelegationToken,
    DelegationTokenManager,
    DelegationTokenSettings,
)
from regent.core.security.session import USER_TYPE, KafkaPrincipal
from regent.zk.client.operations import WatchEvent
from regent.zk.stores.delegation_token_store import ZkDelegationTokenStore
from regent.zk.znodes import DelegationTokenInfoZNode
from tests.support.fake_zookeeper import FakeZooKeeperServer
from tests.support.world import KeptSession

SECRET = b"a secret of all brokers"
ALICE, BOB, CAROL, DAVE = (KafkaPrincipal(USER_TYPE, n) for n in ("alice", "bob", "carol", "dave"))
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SETTINGS = DelegationTokenSettings(
    delegation_token_max_lifetime_ms=10 * HOUR_MS, delegation_token_expiry_time_ms=2 * HOUR_MS
)
CHANGES, TOKENS = "/delegation_token/token_changes", "/delegation_token/tokens"


def a_token(
    token_id: str = "OtzW8ND8TPOEULCWw8bsKA",
    *,
    expiry_ms: int = NOW_MS + HOUR_MS,
    max_ms: int = NOW_MS + 10 * HOUR_MS,
) -> DelegationToken:
    """Return a token of Alice that Bob has asked for and Carol may renew."""
    return DelegationToken(token_id, ALICE, BOB, (CAROL,), NOW_MS, max_ms, expiry_ms)


class TokenBroker:
    """The tokens as one broker knows them; ``watches`` are those that fired."""

    def __init__(self, world: TokenWorld, secret: bytes = SECRET) -> None:
        self.watches: list[WatchEvent] = []
        self.session = KeptSession(world.zookeeper, self.watches.append)
        self.store = ZkDelegationTokenStore(self.session)
        numbers = count(id(self))
        self.tokens = DelegationTokenManager(
            self.store,
            secret,
            SETTINGS,
            now_ms=lambda: world.now_ms,
            random_bytes=lambda n: hashlib.sha512(b"%d" % next(numbers)).digest()[:n],
            lock=nullcontext(),
        )

    def follow(self) -> None:
        """Catch up if a watch has fired, as the broker's thread does."""
        if self.watches:
            self.watches.clear()
            self.tokens.catch_up()


class TokenWorld:
    """A ZooKeeper, and the wall clock of all brokers."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.zookeeper = FakeZooKeeperServer(now_ms=lambda: self.now_ms)

    def broker(self, secret: bytes = SECRET) -> TokenBroker:
        """Return a broker that has started."""
        broker = TokenBroker(self, secret)
        broker.tokens.load()
        return broker

    def put(self, token: DelegationToken) -> None:
        """Write a token without a notification."""
        path = DelegationTokenInfoZNode.path(token.token_id)
        self.zookeeper.put(path, DelegationTokenInfoZNode.encode(token))

    def stored(self, token_id: str) -> DelegationToken | None:
        """Return what ZooKeeper has."""
        node = self.zookeeper.node(DelegationTokenInfoZNode.path(token_id))
        return None if node is None else DelegationTokenInfoZNode.decode(node.data, token_id)

    def notified(self) -> list[str]:
        """Return the ids in the notifications, oldest first."""
        names = sorted(self.zookeeper.children_of(CHANGES))
        nodes = (self.zookeeper.node(f"{CHANGES}/{name}") for name in names)
        return [node.data.decode() for node in nodes if node is not None]
