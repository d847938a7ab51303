"""Delegation tokens: clients write them, the controller deletes expired ones, brokers follow both.

Some histories have them. Their random numbers are their own: other histories do not change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from regent.core.errors import SessionExpiredError
from regent.core.security.delegation_token_manager import (
    DelegationToken,
    DelegationTokenManager,
    DelegationTokenSettings,
    TokenRefusedError,
    create_hmac,
)
from regent.core.security.session import USER_TYPE, KafkaPrincipal
from regent.zk.client.operations import Check, Create, Delete, SetData
from regent.zk.stores.delegation_token_store import ZkDelegationTokenStore
from regent.zk.znodes import (
    TOKEN_PATHS,
    ControllerEpochZNode,
    ControllerTermsZNode,
    DelegationTokenChangeNotificationSequenceZNode,
    DelegationTokenInfoZNode,
    DelegationTokensZNode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.cluster import Cluster
    from tests.support.zookeeper_replica import Transaction

PROBABILITY: Final = 0.2  # of a history
ACTION_PROBABILITY: Final = 0.06
RACE_PROBABILITY: Final = 0.3
SECRET: Final = b"a secret of all brokers"
ALICE: Final = KafkaPrincipal(USER_TYPE, "alice")
MAX_LIFETIME_MS: Final = 20_000
EXPIRY_MS: Final = 4_000
SOON_MS: Final = 1


def has_tokens(seed: int) -> bool:
    """Whether a history has delegation tokens."""
    return random.Random(f"tokens of {seed}").random() < PROBABILITY


def wall_clock_ms(now_ms: int) -> int:
    """Return the time of a right wall clock; one that jumps is after 1970 too."""
    return 1_600_000_000_000 + now_ms


class TokenFollower:
    """The tokens as a broker knows them.

    It stands for a thread of its own: faults in the controller's calls do not happen in it.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        dice = random.Random(f"ids of tokens since session {broker.session.session_id}")
        self.tokens = DelegationTokenManager(
            ZkDelegationTokenStore(broker.session),
            SECRET,
            DelegationTokenSettings(MAX_LIFETIME_MS, EXPIRY_MS),
            now_ms=lambda: wall_clock_ms(broker.world.time.now_ms),
            random_bytes=dice.randbytes,
            lock=nullcontext(),
        )

    def look_soon(self, *, is_new_session: bool = False) -> None:
        """Read the changes soon: a watch has fired, or a session has begun."""
        if is_new_session:
            self.tokens.expect_gaps()
        self._broker.world.time.schedule(self._broker, SOON_MS, self._look)

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Use the session as another thread; nothing happens when it is over."""
        session = self._broker.session
        hook, session.hook = session.hook, None
        try:
            yield
        except (SessionExpiredError, TokenRefusedError):
            pass
        finally:
            session.hook = hook

    def _look(self) -> None:
        with self.without_faults():
            self.tokens.catch_up()


class TokenClients:
    """Creates, renews, shortens and deletes tokens at any broker."""

    def __init__(self, cluster: Cluster, seed: int, note: Callable[..., None]) -> None:
        self._cluster = cluster
        self._random = random.Random(f"clients with tokens of {seed}")
        self._note = note
        self.is_on = has_tokens(seed)
        if self.is_on:
            for path in TOKEN_PATHS:
                cluster.zookeeper.put(path)

    def act(self) -> None:
        """Sometimes do something with a token."""
        if self.is_on and self._random.random() < ACTION_PROBABILITY:
            broker = self._pick()
            if broker is not None and broker.tokens is not None:
                self._act(broker.tokens)

    def write_first(self, paths: Collection[str]) -> None:
        """Sometimes renew a token between the read and the write of a broker that deletes it."""
        ids = {path.rpartition("/")[2] for path in paths if path.startswith(_PARENT)}
        if not ids or self._random.random() >= RACE_PROBABILITY:
            return
        token_id = self._random.choice(sorted(ids))
        path = DelegationTokenInfoZNode.path(token_id)
        node = self._cluster.zookeeper.node(path)
        if node is not None:
            token = DelegationTokenInfoZNode.decode(node.data, token_id)
            end_ms = wall_clock_ms(self._cluster.now_ms) + MAX_LIFETIME_MS
            self._note("renew the token %s first", token_id)
            renewed = DelegationToken(
                token_id, ALICE, ALICE, (), token.issue_timestamp_ms, *[end_ms] * 2
            )
            self._cluster.zookeeper.put(path, DelegationTokenInfoZNode.encode(renewed))
            change = DelegationTokenChangeNotificationSequenceZNode
            self._cluster.zookeeper.put(
                change.PATH_PREFIX, change.encode(token_id), is_sequential=True
            )

    def _act(self, follower: TokenFollower) -> None:
        ids = self._cluster.zookeeper.children_of(DelegationTokensZNode.PATH)
        dice = self._random.random()
        with follower.without_faults():
            if dice < 0.5 or not ids:
                created = follower.tokens.create(ALICE, ALICE, (), -1)
                self._note("create the token %s", created.token.token_id)
                return
            token_id = self._random.choice(ids)
            hmac = create_hmac(token_id, SECRET)
            if dice < 0.7:
                self._note("renew the token %s", token_id)
                follower.tokens.renew(ALICE, hmac, -1)
            else:
                period_ms = self._random.choice((-1, 0, 500))
                self._note("let the token %s expire in %d ms", token_id, period_ms)
                follower.tokens.expire(ALICE, hmac, period_ms)

    def _pick(self) -> SimulatedBroker | None:
        brokers = [b for _, b in sorted(self._cluster.brokers.items()) if b.has_session()]
        return self._random.choice(brokers) if brokers else None


_PARENT: Final = f"{DelegationTokensZNode.PATH}/"


class TokenHistory:
    """Checks every write of a token once; raises ``AssertionError``.

    A write and its notification are one transaction. Only the active controller deletes a token
    unasked, and only one that has expired by the clock that it read at the start of its event: the
    clock may jump before the write.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._processes: dict[int, SimulatedBroker] = {}  # by session, including expired ones
        self._tokens: dict[str, DelegationToken] = {}
        self._read = 0

    def check(self) -> None:
        """Check the transactions since the last call."""
        for broker in self._cluster.brokers.values():
            if broker.tokens is None:
                return
            self._processes.setdefault(broker.session.session_id, broker)
        transactions = self._cluster.zookeeper.transactions
        while self._read < len(transactions):
            self._check_transaction(transactions[self._read])
            self._read += 1

    def _check_transaction(self, transaction: Transaction) -> None:
        written = set()
        for operation in transaction.operations:
            if not operation.path.startswith(_PARENT):
                continue
            token_id = operation.path.removeprefix(_PARENT)
            written.add(token_id)
            if isinstance(operation, Create | SetData):
                token = DelegationTokenInfoZNode.decode(operation.data, token_id)
                self._tokens[token_id] = token
            elif isinstance(operation, Delete):
                former = self._tokens.pop(token_id, None)
                if former is not None and _is_by_a_controller(transaction):
                    self._check_expired(former, transaction)
        change = DelegationTokenChangeNotificationSequenceZNode
        told = {
            change.decode(operation.data)
            for operation in transaction.operations
            if isinstance(operation, Create) and operation.path.startswith(change.PATH_PREFIX)
        }
        if transaction.session_id:  # else the test has written it
            assert written == told, f"TokensAreAnnounced: {transaction}"

    def _check_expired(self, token: DelegationToken, transaction: Transaction) -> None:
        broker = self._processes.get(transaction.session_id)
        if broker is None:
            return  # a process that ended before the first check
        now_ms = broker.controller.context.now_ms
        assert token.is_expired(now_ms), f"OnlyExpiredTokens at {now_ms}: {token}, {transaction}"


def _is_by_a_controller(transaction: Transaction) -> bool:
    """Whether a transaction is fenced; one of a client at a broker is not."""
    checks = {o.path for o in transaction.operations if isinstance(o, Check)}
    is_in_a_term = any(path.startswith(ControllerTermsZNode.PATH) for path in checks)
    return ControllerEpochZNode.PATH in checks and is_in_a_term


def assert_tokens_converged(cluster: Cluster) -> None:
    """Check that no expired token is left, and that all brokers know the others.

    A token that expired since the controller looked last may be left until it looks again.
    """
    stored = {}
    for token_id in cluster.zookeeper.children_of(DelegationTokensZNode.PATH):
        node = cluster.zookeeper.node(DelegationTokenInfoZNode.path(token_id))
        assert node is not None
        stored[token_id] = DelegationTokenInfoZNode.decode(node.data, token_id)
    for broker in cluster.active_controllers:
        if broker.settings.delegation_tokens_are_on:
            looks_every_ms = broker.settings.delegation_token_expiry_check_interval_ms
            looked_at_ms = broker.controller_ms - 2 * looks_every_ms  # at the latest
            expired = [i for i, t in stored.items() if t.is_expired(looked_at_ms)]
            assert not expired, f"ExpiredTokensAreDeleted: {expired}"
    for broker in cluster.brokers.values():
        if broker.tokens is not None:
            known = broker.tokens.tokens._tokens
            assert known == stored, f"broker {broker.broker_id} knows {known}, not {stored}"
