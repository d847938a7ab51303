"""Delegation tokens in a fake ZooKeeper, in one that lags, and in a real one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import ControllerMovedError, Errors, UnreadableError
from regent.core.ports import StoredToken
from regent.core.security.delegation_token_manager import DelegationToken, TokenRefusedError
from regent.zk.client.operations import Create, SetData, WatchEvent, WatchKind
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.delegation_token_store import ZkDelegationTokenStore
from tests.support.token_world import CHANGES, NOW_MS, TOKENS, a_token
from tests.support.zookeeper_sessions import Ensemble, WatchingSession, apply

TOKEN = a_token()
RENEWED = replace(TOKEN, expiry_timestamp_ms=NOW_MS + 7)


@pytest.fixture
def session(ensemble: Ensemble) -> WatchingSession:
    """A session with the parents of tokens, and ``/controller_epoch``."""
    session = ensemble.open_session()
    ZkDelegationTokenStore(session.zk).prepare()
    apply(session.zk, Create("/controller_epoch"))
    return session


@pytest.fixture
def store(session: WatchingSession) -> ZkDelegationTokenStore:
    return ZkDelegationTokenStore(session.zk)


def renew(_: DelegationToken) -> DelegationToken:
    return RENEWED


def delete(_: DelegationToken) -> None:
    return None


def test_parents_are_created_once(store: ZkDelegationTokenStore):
    store.prepare()
    assert not store.read_token_ids()
    assert store.read_changes() == []


def test_a_token_is_created_changed_and_deleted_each_time_with_a_notification(
    store: ZkDelegationTokenStore,
):
    store.create_token(TOKEN)
    assert store.read_tokens(store.read_token_ids()) == {TOKEN.token_id: TOKEN}
    assert store.change_token(TOKEN.token_id, renew) == RENEWED
    assert store.read_tokens([TOKEN.token_id, "absent"]) == {TOKEN.token_id: RENEWED}
    assert store.change_token(TOKEN.token_id, delete) is None
    assert store.read_tokens([TOKEN.token_id]) == {}
    changes = store.read_changes()
    assert [change.token_id for change in changes] == [TOKEN.token_id] * 3
    assert [change.sequence for change in changes] == [0, 1, 2]
    store.delete_changes([change.name for change in changes[:2]])
    assert store.read_changes() == changes[2:]


def test_a_notification_fires_a_watch(ensemble: Ensemble, session: WatchingSession):
    ZkDelegationTokenStore(session.zk).read_changes()
    ZkDelegationTokenStore(ensemble.open_session().zk).create_token(TOKEN)
    assert session.events() == [WatchEvent(WatchKind.CHILDREN, CHANGES)]


def test_an_absent_token_is_not_changed(store: ZkDelegationTokenStore):
    with pytest.raises(TokenRefusedError) as refused:
        store.change_token(TOKEN.token_id, renew)
    assert refused.value.error is Errors.DELEGATION_TOKEN_NOT_FOUND
    assert store.read_changes() == []


def test_a_change_is_decided_by_the_newest_token(ensemble: Ensemble, session: WatchingSession):
    store = ZkDelegationTokenStore(session.zk)
    other = ZkDelegationTokenStore(ensemble.open_session().zk)
    store.create_token(TOKEN)
    other.change_token(TOKEN.token_id, renew)
    seen: list[DelegationToken] = []

    def look(token: DelegationToken) -> DelegationToken:
        seen.append(token)
        return token

    store.change_token(TOKEN.token_id, look)
    assert seen == [RENEWED]


def test_a_refused_change_writes_nothing(store: ZkDelegationTokenStore):
    store.create_token(TOKEN)

    def refuse(_: DelegationToken) -> DelegationToken:
        raise TokenRefusedError(Errors.DELEGATION_TOKEN_EXPIRED)

    with pytest.raises(TokenRefusedError):
        store.change_token(TOKEN.token_id, refuse)
    assert store.read_tokens([TOKEN.token_id]) == {TOKEN.token_id: TOKEN}
    assert len(store.read_changes()) == 1


def test_a_notification_that_cannot_be_decoded_has_no_id(
    session: WatchingSession, store: ZkDelegationTokenStore
):
    apply(session.zk, Create(f"{CHANGES}/token_change_", b"\xff", sequential=True))
    apply(session.zk, Create(f"{CHANGES}/oops", b"x"))
    assert {(c.sequence, c.token_id) for c in store.read_changes()} == {(0, None), (-1, None)}


def test_a_different_secret_is_noticed_once(ensemble: Ensemble, session: WatchingSession):
    first = ZkDelegationTokenStore(session.zk)
    second = ZkDelegationTokenStore(ensemble.open_session().zk)
    assert not first.exchange_secret_check("one")
    assert not second.exchange_secret_check("one")
    assert second.exchange_secret_check("two")
    assert not second.exchange_secret_check("two")
    first.sync()
    assert first.exchange_secret_check("one")


def test_tokens_that_cannot_be_listed_are_an_error(
    ensemble: Ensemble, store: ZkDelegationTokenStore
):
    store.create_token(TOKEN)
    ensemble.deny(TOKENS)
    with pytest.raises(UnreadableError, match=TOKENS):
        store.read_token_ids()


# --- the controller ---


def test_the_controller_reads_tokens_in_parts(session: WatchingSession):
    store = ZkDelegationTokenStore(session.zk)
    tokens = [a_token(name) for name in "abcde"]
    for token in tokens:
        store.create_token(token)
    apply(session.zk, SetData(f"{TOKENS}/c", b"garbage", 0))
    controller = ZkControllerStore(session.zk)
    stored = [StoredToken(token, 0) for token in tokens]
    assert controller.read_delegation_tokens("", 2) == (stored[:2], "b")
    assert controller.read_delegation_tokens("b", 2) == ([stored[3]], "d")
    assert controller.read_delegation_tokens("d", 2) == ([stored[4]], None)
    assert controller.read_delegation_tokens("d", 1) == ([stored[4]], None)
    assert controller.read_delegation_tokens("e", 1) == ([], None)


def test_the_controller_deletes_what_nobody_has_written_since(session: WatchingSession):
    store, controller = ZkDelegationTokenStore(session.zk), ZkControllerStore(session.zk)
    for name in "abc":
        store.create_token(a_token(name))
    read, _ = controller.read_delegation_tokens("", 10)
    store.change_token("b", lambda token: replace(token, expiry_timestamp_ms=NOW_MS + 7))
    store.change_token("c", delete)
    controller.delete_delegation_tokens(read, 0)
    assert store.read_token_ids() == ["b"]
    assert [change.token_id for change in store.read_changes()] == [*"abcbc", "a"]


def test_a_deposed_controller_deletes_no_token(session: WatchingSession):
    store, controller = ZkDelegationTokenStore(session.zk), ZkControllerStore(session.zk)
    store.create_token(TOKEN)
    read, _ = controller.read_delegation_tokens("", 10)
    apply(session.zk, SetData("/controller_epoch", b"8", 0))
    with pytest.raises(ControllerMovedError):
        controller.delete_delegation_tokens(read, 0)
    assert store.read_token_ids() == [TOKEN.token_id]


def test_a_cluster_without_tokens_has_nothing_to_delete(ensemble: Ensemble):
    controller = ZkControllerStore(ensemble.open_session().zk)
    assert controller.read_delegation_tokens("", 10) == ([], None)
