"""Delegation tokens over the fake ZooKeeper: their times, who may change them, who learns of it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.errors import Errors, SessionExpiredError, UnreadableError
from regent.core.security.delegation_token_manager import (
    CHANGE_EXPIRATION_MS,
    DelegationToken,
    TokenRefusedError,
    create_hmac,
    renewed,
    secret_check,
    shortened,
)
from regent.core.security.scram import ScramMechanism, derive
from regent.core.security.session import KafkaPrincipal
from tests.support.fake_zookeeper import Moment, lose_connection, once
from tests.support.token_world import (
    ALICE,
    BOB,
    CAROL,
    CHANGES,
    DAVE,
    HOUR_MS,
    NOW_MS,
    SECRET,
    SETTINGS,
    TOKENS,
    TokenBroker,
    TokenWorld,
    a_token,
)

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
LONG_MAX = 2**63 - 1


def everybody(_: DelegationToken) -> bool:
    return True


def nobody(_: DelegationToken) -> bool:
    return False


@pytest.fixture
def world() -> TokenWorld:
    return TokenWorld()


@pytest.fixture
def broker(world: TokenWorld) -> TokenBroker:
    return world.broker()


# --- as a genuine Kafka 3.9.1 computes it ---

HMAC = "DtgphwZK84nsD7CrVLMOO1l3zbai1A7eug1Ff+S0INRicagSVS6z3pYGoUq+CF98/+eXGbAR/sKvrL+gT3AocA=="
KEYS = {
    SHA_256: (
        "QnwTS6ZWcJMVyG2BHc+cDUgWjfMwJCa9EwvrBhCeOlU=",
        "Sm5Re6e8xM6QbXdLeJrb+4HjnePkAEimpIlLWq5xxdA=",
    ),
    SHA_512: (
        "gQ1QVhvBA8ztrE5IzJDJSdLNqR26qHEmDzd35dn+Q12NjBOQDFCYf5G4OaIIQbCAaMzFu6+5jUwodTjihBneBg==",
        "aAbUeaWDyDeZuZ3x2ze21UduEkB0YdJHmgjKzsJRvSwp5xaF4TephUpQoCJsO7xqcmWPrfSRa9HfCrAAw1vvOA==",
    ),
}


def test_the_hmac_is_kafkas():
    assert base64.b64encode(create_hmac("OtzW8ND8TPOEULCWw8bsKA", SECRET)).decode() == HMAC


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_the_credential_is_kafkas(mechanism: ScramMechanism):
    credential = derive(mechanism, HMAC, b"a salt of 16 byt")
    keys = (base64.b64encode(key).decode() for key in (credential[1], credential[2]))
    assert (*keys, credential.iterations) == (*KEYS[mechanism], 4096)


def test_an_id_is_a_random_uuid_of_22_characters(broker: TokenBroker):
    ids = {broker.tokens.create(ALICE, ALICE, (), -1).token.token_id for _ in range(1_000)}
    assert len(ids) == 1_000
    for token_id in ids:
        assert not token_id.startswith("-"), "commands take it for an option"
        number = base64.urlsafe_b64decode(token_id + "==")
        assert (len(token_id), number[6] >> 4, number[8] >> 6) == (22, 4, 2)


# --- times ---


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expiry_ms"),
    [
        (-1, 10 * HOUR_MS, 2 * HOUR_MS),
        (0, 10 * HOUR_MS, 2 * HOUR_MS),
        (5 * HOUR_MS, 5 * HOUR_MS, 2 * HOUR_MS),
        (HOUR_MS, HOUR_MS, HOUR_MS),
        (LONG_MAX, 10 * HOUR_MS, 2 * HOUR_MS),
    ],
)
def test_a_new_token_ends_as_asked_but_not_after_the_settings(
    broker: TokenBroker, asked_ms: int, max_ms: int, expiry_ms: int
):
    token = broker.tokens.create(ALICE, ALICE, (), asked_ms).token
    assert token.issue_timestamp_ms == NOW_MS
    assert token.max_timestamp_ms - NOW_MS == max_ms
    assert token.expiry_timestamp_ms - NOW_MS == expiry_ms


@pytest.mark.parametrize(
    ("period_ms", "end_ms"),
    [
        (-1, 2 * HOUR_MS),
        (-LONG_MAX, 2 * HOUR_MS),
        (0, 0),
        (HOUR_MS, HOUR_MS),
        (11 * HOUR_MS, 10 * HOUR_MS),
        (LONG_MAX, 10 * HOUR_MS),
    ],
)
def test_a_renewed_token_ends_after_the_period_but_not_after_its_maximum(
    broker: TokenBroker, period_ms: int, end_ms: int
):
    created = broker.tokens.create(ALICE, ALICE, (), -1)
    assert broker.tokens.renew(ALICE, created.hmac, period_ms) - NOW_MS == end_ms


def test_a_token_is_valid_at_its_end_and_not_after_it():
    token = a_token(expiry_ms=NOW_MS)
    assert [token.is_expired(NOW_MS + late) for late in (-1, 0, 1)] == [False, False, True]
    late = replace(token, expiry_timestamp_ms=NOW_MS + 9, max_timestamp_ms=NOW_MS)
    assert late.is_expired(NOW_MS + 1)


def test_an_expired_token_is_neither_renewed_nor_shortened_but_can_be_deleted(
    world: TokenWorld, broker: TokenBroker
):
    created = broker.tokens.create(ALICE, ALICE, (), -1)
    world.now_ms += 2 * HOUR_MS + 1
    for change in (broker.tokens.renew, broker.tokens.expire):
        with pytest.raises(TokenRefusedError) as refused:
            change(ALICE, created.hmac, HOUR_MS)
        assert refused.value.error is Errors.DELEGATION_TOKEN_EXPIRED
    assert broker.tokens.expire(ALICE, created.hmac, -1) == world.now_ms
    assert world.stored(created.token.token_id) is None


def test_a_clock_that_is_set_back_makes_a_token_valid_again(world: TokenWorld, broker: TokenBroker):
    token_id = broker.tokens.create(ALICE, ALICE, (), -1).token.token_id
    world.now_ms += 3 * HOUR_MS
    assert broker.tokens.scram(SHA_256, token_id, by_token=True) is None
    world.now_ms -= 3 * HOUR_MS
    assert broker.tokens.scram(SHA_256, token_id, by_token=True) is not None


times = st.integers(-(2**63), LONG_MAX)


@settings(derandomize=True, deadline=None, database=None)
@given(period_ms=times, now_ms=st.integers(0, 2**45), expiry_ms=times, max_ms=times)
def test_no_change_of_a_token_outlives_its_maximum(
    period_ms: int, now_ms: int, expiry_ms: int, max_ms: int
):
    token = a_token(expiry_ms=expiry_ms, max_ms=max_ms)
    changes: tuple[Callable[[], DelegationToken | None], ...] = (
        lambda: renewed(token, ALICE, period_ms, SETTINGS, now_ms),
        lambda: shortened(token, ALICE, period_ms, now_ms),
    )
    for change in changes:
        try:
            changed = change()
        except TokenRefusedError:
            assert token.is_expired(now_ms)
        else:
            assert changed is None or changed.expiry_timestamp_ms <= max_ms


# --- who may ---


@pytest.mark.parametrize(
    ("who", "may"), [(ALICE, True), (CAROL, True), (BOB, False), (DAVE, False)]
)
def test_the_owner_and_the_renewers_may_change_a_token_and_the_requester_may_not(
    broker: TokenBroker, who: KafkaPrincipal, *, may: bool
):
    created = broker.tokens.create(ALICE, BOB, (CAROL,), -1)
    for change in (broker.tokens.renew, broker.tokens.expire):
        if may:
            change(who, created.hmac, HOUR_MS)
            continue
        with pytest.raises(TokenRefusedError) as refused:
            change(who, created.hmac, HOUR_MS)
        assert refused.value.error is Errors.DELEGATION_TOKEN_OWNER_MISMATCH


def test_a_stranger_does_not_learn_that_a_token_has_expired(world: TokenWorld, broker: TokenBroker):
    created = broker.tokens.create(ALICE, ALICE, (), -1)
    world.now_ms += 3 * HOUR_MS
    with pytest.raises(TokenRefusedError) as refused:
        broker.tokens.renew(DAVE, created.hmac, -1)
    assert refused.value.error is Errors.DELEGATION_TOKEN_OWNER_MISMATCH


@pytest.mark.parametrize("hmac", [b"", b"h", create_hmac("OtzW8ND8TPOEULCWw8bsKA", b"another")])
def test_an_unknown_hmac_is_refused(world: TokenWorld, broker: TokenBroker, hmac: bytes):
    world.put(a_token())
    for change in (broker.tokens.renew, broker.tokens.expire):
        with pytest.raises(TokenRefusedError) as refused:
            change(ALICE, hmac, -1)
        assert refused.value.error is Errors.DELEGATION_TOKEN_NOT_FOUND


def test_a_renewer_that_is_no_user_is_refused(broker: TokenBroker):
    with pytest.raises(TokenRefusedError) as refused:
        broker.tokens.create(ALICE, ALICE, (BOB, KafkaPrincipal("Group", "g")), -1)
    assert refused.value.error is Errors.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize("who", [ALICE, BOB, CAROL])
def test_owner_requester_and_renewers_see_a_token(broker: TokenBroker, who: KafkaPrincipal):
    created = broker.tokens.create(ALICE, BOB, (CAROL,), -1)
    broker.tokens.create(DAVE, DAVE, (), -1)
    assert broker.tokens.describe(who, None, nobody) == [created]
    assert broker.tokens.describe(who, [who], nobody) == [created]
    assert broker.tokens.describe(who, [DAVE], nobody) == []


def test_others_see_a_token_when_the_authorizer_allows_it(broker: TokenBroker):
    created = broker.tokens.create(ALICE, ALICE, (), -1)
    assert broker.tokens.describe(DAVE, None, nobody) == []
    assert broker.tokens.describe(DAVE, None, everybody) == [created]
    assert broker.tokens.describe(DAVE, [BOB], everybody) == []


# --- what other brokers learn ---


def test_a_token_of_another_broker_is_known_after_its_notification(world: TokenWorld):
    first, second = world.broker(), world.broker()
    token_id = first.tokens.create(ALICE, ALICE, (), -1).token.token_id
    assert second.tokens.scram(SHA_256, token_id, by_token=True) is None
    second.follow()
    assert second.tokens.scram(SHA_256, token_id, by_token=True) is not None


def test_a_token_of_another_broker_is_renewed_before_its_notification_is_read(world: TokenWorld):
    first, second = world.broker(), world.broker()
    created = first.tokens.create(ALICE, ALICE, (), -1)
    assert second.tokens.renew(ALICE, created.hmac, HOUR_MS) == NOW_MS + HOUR_MS
    first.follow()
    assert first.tokens.describe(ALICE, None, nobody)[0].token.expiry_timestamp_ms == (
        NOW_MS + HOUR_MS
    )


def test_what_a_broker_describes_is_not_older_than_the_request(world: TokenWorld):
    first, second = world.broker(), world.broker()
    created = first.tokens.create(ALICE, ALICE, (), -1)
    assert second.tokens.describe(ALICE, None, nobody) == [created]


def test_a_token_that_another_broker_deleted_does_not_log_in(world: TokenWorld):
    first, second = world.broker(), world.broker()
    created = first.tokens.create(ALICE, ALICE, (), -1)
    second.follow()
    first.tokens.expire(ALICE, created.hmac, -1)
    second.follow()
    assert second.tokens.scram(SHA_256, created.token.token_id, by_token=True) is None
    with pytest.raises(TokenRefusedError) as refused:
        second.tokens.renew(ALICE, created.hmac, -1)
    assert refused.value.error is Errors.DELEGATION_TOKEN_NOT_FOUND


def test_a_renewal_that_this_broker_has_not_seen_counts(world: TokenWorld):
    first, second = world.broker(), world.broker()
    created = first.tokens.create(ALICE, ALICE, (), -1)
    second.follow()
    first.tokens.renew(ALICE, created.hmac, 5 * HOUR_MS)
    world.now_ms += 3 * HOUR_MS  # expired, as far as the second broker knows
    assert second.tokens.renew(ALICE, created.hmac, 6 * HOUR_MS) == NOW_MS + 9 * HOUR_MS


def test_a_broker_starts_with_all_tokens(world: TokenWorld):
    world.broker().tokens.create(ALICE, ALICE, (), -1)
    world.zookeeper.remove(f"{CHANGES}/token_change_0000000000")
    world.put(a_token())
    assert len(world.broker().tokens.describe(ALICE, None, nobody)) == 2


def test_a_new_session_reads_all_tokens(world: TokenWorld, broker: TokenBroker):
    broker.session.expire()
    world.put(a_token())
    with pytest.raises(SessionExpiredError):
        broker.tokens.catch_up()
    broker.session.renew(broker.watches.append)
    broker.tokens.expect_gaps()
    broker.tokens.catch_up()
    assert broker.tokens.scram(SHA_256, a_token().token_id, by_token=True) is not None
    world.zookeeper.put(f"{CHANGES}/token_change_", b"x", is_sequential=True)
    assert broker.watches != [], "the watch is set in the new session"


def test_changes_are_followed_when_their_numbers_begin_again(world: TokenWorld):
    first, second = world.broker(), world.broker()
    for _ in range(3):
        first.tokens.create(ALICE, ALICE, (), -1)
    second.follow()
    for name in world.zookeeper.children_of(CHANGES):
        world.zookeeper.remove(f"{CHANGES}/{name}")
    world.zookeeper.remove(CHANGES)
    world.zookeeper.put(CHANGES)
    second.tokens.expect_gaps()
    second.tokens.catch_up()
    token_id = first.tokens.create(ALICE, ALICE, (), -1).token.token_id
    second.tokens.catch_up()
    assert second.tokens.scram(SHA_256, token_id, by_token=True) is not None


def test_all_tokens_are_read_again_after_unread_notifications_were_deleted(world: TokenWorld):
    first, second = world.broker(), world.broker()
    token_id = first.tokens.create(ALICE, ALICE, (), -1).token.token_id
    world.zookeeper.remove(f"{CHANGES}/token_change_0000000000")
    first.tokens.create(BOB, BOB, (), -1)
    second.follow()
    assert second.tokens.scram(SHA_256, token_id, by_token=True) is not None


def test_a_change_that_could_not_be_read_is_read_later(world: TokenWorld):
    first, second = world.broker(), world.broker()
    token_id = first.tokens.create(ALICE, ALICE, (), -1).token.token_id

    second.session.hook = once(Moment.AFTER, second.session.expire, method="children")
    with pytest.raises(SessionExpiredError):
        second.tokens.catch_up()
    second.session.renew(second.watches.append)
    second.tokens.expect_gaps()
    second.tokens.catch_up()
    assert second.tokens.scram(SHA_256, token_id, by_token=True) is not None


def test_old_notifications_are_deleted(world: TokenWorld, broker: TokenBroker):
    broker.tokens.create(ALICE, ALICE, (), -1)
    world.now_ms += CHANGE_EXPIRATION_MS + 1
    broker.tokens.create(BOB, BOB, (), -1)
    broker.tokens.catch_up()
    assert world.zookeeper.children_of(CHANGES) == ["token_change_0000000001"]


@pytest.mark.parametrize("data", [b"", b"not JSON", b'{"version":4}', b'{"version":3,"owner":7}'])
def test_a_token_that_cannot_be_decoded_does_not_log_in_and_others_do(
    world: TokenWorld, broker: TokenBroker, data: bytes
):
    token_id = broker.tokens.create(ALICE, ALICE, (), -1).token.token_id
    world.put(a_token())
    world.zookeeper.put(f"{TOKENS}/{a_token().token_id}", data)
    other = world.broker()
    assert other.tokens.scram(SHA_256, a_token().token_id, by_token=True) is None
    assert other.tokens.scram(SHA_256, token_id, by_token=True) is not None


def test_a_token_that_becomes_unreadable_does_not_log_in(world: TokenWorld, broker: TokenBroker):
    token_id = broker.tokens.create(ALICE, ALICE, (), -1).token.token_id
    world.zookeeper.deny(f"{TOKENS}/{token_id}")
    broker.tokens.expect_gaps()
    broker.tokens.catch_up()
    assert broker.tokens.scram(SHA_256, token_id, by_token=True) is None


def test_a_token_that_is_readable_again_logs_in(
    world: TokenWorld, broker: TokenBroker, caplog: pytest.LogCaptureFixture
):
    other = world.broker()
    token_id = broker.tokens.create(ALICE, ALICE, (), -1).token.token_id
    world.zookeeper.deny(f"{TOKENS}/{token_id}")
    for _ in range(3):
        other.tokens.catch_up()
    assert other.tokens.scram(SHA_256, token_id, by_token=True) is None
    assert caplog.text.count(f"delegation token {token_id}") == 1
    world.zookeeper.allow(f"{TOKENS}/{token_id}")
    other.tokens.catch_up()
    assert other.tokens.scram(SHA_256, token_id, by_token=True) is not None


@pytest.mark.parametrize("hidden", [CHANGES, f"{CHANGES}/token_change_0000000000"])
def test_all_tokens_are_read_if_changes_cannot_be(
    world: TokenWorld, broker: TokenBroker, hidden: str
):
    other = world.broker()
    token = broker.tokens.create(ALICE, ALICE, (), -1)
    token_id = token.token.token_id
    world.zookeeper.deny(hidden)
    other.tokens.catch_up()
    assert other.tokens.scram(SHA_256, token_id, by_token=True) is not None
    broker.tokens.expire(ALICE, token.hmac, -1)
    other.tokens.catch_up()
    assert other.tokens.scram(SHA_256, token_id, by_token=True) is None
    world.zookeeper.allow(hidden)
    other.tokens.catch_up()
    other.watches.clear()
    broker.tokens.create(BOB, BOB, (), -1)
    assert other.watches, "a watch fires again"


def test_a_broker_does_not_start_when_tokens_cannot_be_listed(world: TokenWorld):
    world.broker()
    world.zookeeper.deny(TOKENS)
    with pytest.raises(UnreadableError, match=TOKENS):
        world.broker()


def test_a_running_broker_keeps_its_tokens_when_they_cannot_be_listed(
    world: TokenWorld, broker: TokenBroker, caplog: pytest.LogCaptureFixture
):
    token_id = broker.tokens.create(ALICE, ALICE, (), -1).token.token_id
    world.zookeeper.deny(TOKENS)
    broker.tokens.expect_gaps()
    broker.tokens.catch_up()
    assert broker.tokens.scram(SHA_256, token_id, by_token=True) is not None
    assert "stays as it is" in caplog.text
    world.zookeeper.allow(TOKENS)
    world.put(a_token())
    broker.tokens.catch_up()
    assert broker.tokens.scram(SHA_256, a_token().token_id, by_token=True) is not None


# --- logins ---


def test_a_token_logs_in_its_owner_until_it_ends(broker: TokenBroker):
    created = broker.tokens.create(ALICE, BOB, (), -1)
    credential = broker.tokens.scram(SHA_512, created.token.token_id, by_token=True)
    assert credential is not None
    assert (credential.owner, credential.expires_at_ms) == (ALICE, NOW_MS + 2 * HOUR_MS)
    password = base64.b64encode(created.hmac).decode()
    assert credential[:4] == derive(SHA_512, password, credential.salt)[:4]


def test_a_credential_is_kept_and_the_end_of_the_token_is_not(
    broker: TokenBroker, monkeypatch: pytest.MonkeyPatch
):
    created = broker.tokens.create(ALICE, ALICE, (), -1)
    token_id = created.token.token_id
    first = broker.tokens.scram(SHA_256, token_id, by_token=True)
    monkeypatch.delattr("regent.core.security.delegation_token_manager.derive")
    broker.tokens.renew(ALICE, created.hmac, HOUR_MS)
    second = broker.tokens.scram(SHA_256, token_id, by_token=True)
    assert first is not None
    assert second == first._replace(expires_at_ms=NOW_MS + HOUR_MS)


def test_a_token_is_no_user(broker: TokenBroker):
    token_id = broker.tokens.create(ALICE, ALICE, (), -1).token.token_id
    assert broker.tokens.scram(SHA_256, token_id, by_token=False) is None


def test_no_credential_is_derived_when_tokens_are_loaded(
    world: TokenWorld, monkeypatch: pytest.MonkeyPatch
):
    world.broker().tokens.create(ALICE, ALICE, (), -1)
    monkeypatch.delattr("regent.core.security.delegation_token_manager.derive")
    world.broker()


def test_an_hmac_is_not_shown(broker: TokenBroker):
    created = broker.tokens.create(ALICE, ALICE, (), -1)
    assert str(created) == f"TokenWithHmac({created.token.token_id})"
    credential = broker.tokens.scram(SHA_256, created.token.token_id, by_token=True)
    assert str(credential) == "ScramCredential(iterations=4096)"


# --- the secret ---


def test_a_changed_secret_is_told_once_with_the_number_of_tokens(
    world: TokenWorld, broker: TokenBroker, caplog: pytest.LogCaptureFixture
):
    created = broker.tokens.create(ALICE, ALICE, (), -1)
    broker.tokens.create(BOB, BOB, (), HOUR_MS)
    world.now_ms += HOUR_MS + 1
    assert caplog.messages == []
    changed = world.broker(b"another secret of all brokers")
    (line,) = caplog.messages
    assert "1 tokens do not log in" in line
    with pytest.raises(TokenRefusedError) as refused:
        changed.tokens.renew(ALICE, created.hmac, -1)
    assert refused.value.error is Errors.DELEGATION_TOKEN_NOT_FOUND
    world.broker(b"another secret of all brokers")
    assert len(caplog.messages) == 1


def test_the_check_of_a_secret_does_not_have_the_secret(world: TokenWorld):
    world.broker()
    node = world.zookeeper.node(TOKENS)
    assert node is not None
    assert secret_check(SECRET).encode() in node.data
    assert SECRET not in node.data
    assert secret_check(SECRET) != secret_check(SECRET + b"!")


def test_a_damaged_check_is_written_again(
    world: TokenWorld, broker: TokenBroker, caplog: pytest.LogCaptureFixture
):
    broker.tokens.create(ALICE, ALICE, (), -1)
    world.zookeeper.put(TOKENS, b"garbage")
    world.broker()
    assert "tokens do not log in" not in caplog.text
    node = world.zookeeper.node(TOKENS)
    assert node is not None
    assert secret_check(SECRET).encode() in node.data


# --- lost answers ---


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_token_is_created_once_although_the_answer_is_lost(
    world: TokenWorld, broker: TokenBroker, moment: Moment
):
    broker.session.hook = once(moment, lose_connection)
    token_id = broker.tokens.create(ALICE, ALICE, (), -1).token.token_id
    assert world.notified() == [token_id]
    assert world.stored(token_id) is not None


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize("period_ms", [-1, 0, HOUR_MS])
def test_a_token_is_changed_once_although_the_answer_is_lost(
    world: TokenWorld, broker: TokenBroker, moment: Moment, period_ms: int
):
    created = broker.tokens.create(ALICE, ALICE, (), -1)

    def lose() -> None:
        world.now_ms += 1
        lose_connection()

    broker.session.hook = once(moment, lose)
    ends_ms = broker.tokens.expire(ALICE, created.hmac, period_ms)
    stored = world.stored(created.token.token_id)
    assert (stored is None) == (period_ms < 0)
    assert stored is None or stored.expiry_timestamp_ms == ends_ms
    assert world.notified() == [created.token.token_id] * 2


def test_a_token_that_changes_meanwhile_is_decided_again(world: TokenWorld):
    first, second = world.broker(), world.broker()
    created = first.tokens.create(ALICE, ALICE, (), -1)
    first.session.hook = once(Moment.BEFORE, lambda: second.tokens.expire(ALICE, created.hmac, -1))
    with pytest.raises(TokenRefusedError) as refused:
        first.tokens.renew(ALICE, created.hmac, HOUR_MS)
    assert refused.value.error is Errors.DELEGATION_TOKEN_NOT_FOUND
    assert world.stored(created.token.token_id) is None
