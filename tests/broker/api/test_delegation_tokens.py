"""The requests about delegation tokens: who gets which answer, in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from regent.broker.api.delegation_tokens import (
    delegation_token_apis,
)
from regent.core.errors import Errors
from regent.core.security.acls import (
    ANY_HOST,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.authorizer import (
    ALLOW_ALL,
    AclAuthorizer,
    Authorizer,
    AuthorizerSettings,
)
from regent.core.security.session import (
    ANONYMOUS,
    USER_TYPE,
    KafkaPrincipal,
    SecurityProtocol,
    Session,
)
from tests.support import delegation_token_messages as messages
from tests.support.delegation_token_messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.support.token_world import ALICE, BOB, CAROL, DAVE, HOUR_MS, NOW_MS, TokenWorld
from tests.transport.kafka.wire import request_of, whole

FIRST_WITH_OWNER = 3
NOBODY_MAY = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
NOBODY_MAY.replace({})  # until then they would count as unread


def allowing(
    principal: KafkaPrincipal, operation: AclOperation, resource_type: ResourceType, name: str
) -> Authorizer:
    """Return an authorizer with one ACL."""
    made = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
    entry = AccessControlEntry(str(principal), ANY_HOST, operation, AclPermissionType.ALLOW)
    made.replace({ResourcePattern(resource_type, name, PatternType.LITERAL): frozenset({entry})})
    return made


def logged_in(principal: KafkaPrincipal, **changed: Any) -> Session:
    protocol = {"security_protocol": SecurityProtocol.SASL_SSL, **changed}
    return Session("127.0.0.1", principal, **protocol)


REFUSED = {
    "PLAINTEXT": logged_in(ALICE, security_protocol=SecurityProtocol.PLAINTEXT),
    "SSL without a certificate": logged_in(ANONYMOUS, security_protocol=SecurityProtocol.SSL),
    "by a token": logged_in(ALICE, by_token=True),
    "by a token without TLS": logged_in(
        ALICE, by_token=True, security_protocol=SecurityProtocol.SASL_PLAINTEXT
    ),
}
ALLOWED = {
    "SSL with a certificate": logged_in(ALICE, security_protocol=SecurityProtocol.SSL),
    "SASL_SSL": logged_in(ALICE),
    "SASL_PLAINTEXT": logged_in(ALICE, security_protocol=SecurityProtocol.SASL_PLAINTEXT),
    "a user with that name": logged_in(ANONYMOUS),
}


class Served:
    """The APIs of a broker, with an authorizer or without."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.world = TokenWorld()
        self.broker = self.world.broker()
        self._executor = executor
        self.authorizer: Authorizer = NOBODY_MAY
        self.is_on = True

    def ask(self, request: Any, session: Session, version: int = 2) -> Any:
        """Return the answer."""
        tokens = self.broker.tokens if self.is_on else None
        apis = delegation_token_apis(tokens, self._executor)
        (api,) = [api for api in apis if api.key == type(request).API_KEY]
        assert api.min_version <= version <= api.max_version
        received = request_of(api.key, version, request.encode(version=version))
        received.session = session
        received.authorizer = self.authorizer

        async def answer() -> Any:
            return await api.handle(received)

        body = whole(asyncio.run(answer()))
        response_type = getattr(messages, type(request).__name__.replace("Request", "Response"))
        return response_type.decode(body, version=version)

    def create(
        self,
        who: KafkaPrincipal | Session,
        version: int = 3,
        *,
        owner: KafkaPrincipal | None = None,
        renewers: Sequence[KafkaPrincipal] = (),
    ) -> Any:
        row = CreateDelegationTokenRequest.CreatableRenewers
        rows = [row(principal_type=r.principal_type, principal_name=r.name) for r in renewers]
        asked = CreateDelegationTokenRequest(
            owner_principal_type=owner and owner.principal_type,
            owner_principal_name=owner and owner.name,
            renewers=rows,
            max_lifetime_ms=-1,
        )
        session = who if isinstance(who, Session) else logged_in(who)
        return self.ask(asked, session, version)

    def renew(self, who: KafkaPrincipal, hmac: bytes, period_ms: int = -1) -> Any:
        return self.ask(
            RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms), logged_in(who)
        )

    def expire(self, who: KafkaPrincipal, hmac: bytes, period_ms: int = -1) -> Any:
        return self.ask(
            ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms), logged_in(who)
        )

    def described(self, who: KafkaPrincipal, owners: list[KafkaPrincipal] | None = None) -> Any:
        """Return the ids of the described tokens."""
        answer = self.describe(who, owners)
        assert answer.error_code == Errors.NONE
        return [token.token_id for token in answer.tokens]

    def describe(
        self, who: KafkaPrincipal, owners: list[KafkaPrincipal] | None = None, version: int = 3
    ) -> Any:
        asked = DescribeDelegationTokenRequest(owners=None if owners is None else rows(owners))
        return self.ask(asked, logged_in(who), version)


def rows(principals: list[KafkaPrincipal]) -> list[Any]:
    """Principals as kafka-python's rows of a request."""
    row = DescribeDelegationTokenRequest.DescribeDelegationTokenOwner
    return [row(principal_type=p.principal_type, principal_name=p.name) for p in principals]


def all_requests() -> list[tuple[Any, int]]:
    """Every request in every version."""
    requests = [
        (
            CreateDelegationTokenRequest(
                owner_principal_type=USER_TYPE,
                owner_principal_name="",
                renewers=[],
                max_lifetime_ms=-1,
            ),
            3,
        ),
        (RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=-1), 2),
        (ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=-1), 2),
        (DescribeDelegationTokenRequest(owners=None), 3),
    ]
    return [(request, version) for request, last in requests for version in range(last + 1)]


@pytest.fixture
def served() -> Iterator[Served]:
    with ThreadPoolExecutor(1) as executor:
        yield Served(executor)


@pytest.mark.parametrize("session", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("is_on", [True, False])
def test_a_client_that_has_not_logged_in_or_did_so_by_a_token_is_refused(
    served: Served, session: Session, *, is_on: bool
):
    served.is_on = is_on
    for request, version in all_requests():
        answer = served.ask(request, session, version)
        assert answer.error_code == Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert served.world.notified() == []


@pytest.mark.parametrize("session", ALLOWED.values(), ids=ALLOWED)
def test_a_client_that_has_logged_in_gets_a_token(served: Served, session: Session):
    assert served.create(session).error_code == Errors.NONE
    assert len(served.world.notified()) == 1


def test_without_a_secret_every_request_is_refused(served: Served):
    served.is_on = False
    for request, version in all_requests():
        answer = served.ask(request, logged_in(ALICE), version)
        assert answer.error_code == Errors.DELEGATION_TOKEN_AUTH_DISABLED


@pytest.mark.parametrize("version", range(4))
def test_a_refusal_has_no_token(served: Served, version: int):
    served.is_on = False
    answer = served.create(ALICE, version)
    assert (answer.principal_type, answer.principal_name) == (USER_TYPE, "alice")
    times = (answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms)
    assert (*times, answer.token_id, answer.hmac) == (-1, -1, -1, "", b"")


@pytest.mark.parametrize("version", range(4))
def test_a_token_is_created_and_described_in_every_version(served: Served, version: int):
    created = served.create(ALICE, version, renewers=[BOB, CAROL])
    assert (created.error_code, created.principal_name) == (Errors.NONE, "alice")
    assert created.issue_timestamp_ms == NOW_MS
    (token,) = served.describe(ALICE, version=version).tokens
    assert (token.token_id, token.hmac) == (created.token_id, created.hmac)
    assert [row.principal_name for row in token.renewers] == ["bob", "carol"]
    times = (token.issue_timestamp, token.expiry_timestamp, token.max_timestamp)
    assert times == (NOW_MS, created.expiry_timestamp_ms, created.max_timestamp_ms)
    if version >= FIRST_WITH_OWNER:
        assert token.token_requester_principal_name == "alice"


def test_a_token_for_another_needs_the_permission_to_create_it(served: Served):
    refused = served.create(ALICE, owner=BOB)
    assert refused.error_code == Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", "alice")
    served.authorizer = allowing(ALICE, AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob")
    created = served.create(ALICE, owner=BOB)
    assert created.error_code == Errors.NONE
    assert served.described(BOB) == served.described(ALICE) == [created.token_id]


def test_a_token_for_oneself_needs_no_permission(served: Served):
    assert served.create(ALICE, owner=ALICE).error_code == Errors.NONE


def test_the_permission_is_refused_before_a_bad_renewer_and_before_a_missing_secret(served: Served):
    served.is_on = False
    bad = [KafkaPrincipal("Group", "g")]
    refused = [
        served.create(ALICE, renewers=bad, owner=BOB).error_code,
        served.create(ALICE, renewers=bad).error_code,
        served.create(ALICE).error_code,
    ]
    assert refused == [
        Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        Errors.INVALID_PRINCIPAL_TYPE,
        Errors.DELEGATION_TOKEN_AUTH_DISABLED,
    ]


def test_a_token_is_renewed_and_expired(served: Served):
    hmac = served.create(ALICE).hmac
    assert served.renew(ALICE, hmac, HOUR_MS).expiry_timestamp_ms == NOW_MS + HOUR_MS
    assert served.expire(ALICE, hmac, 5).expiry_timestamp_ms == NOW_MS + 5
    assert served.expire(ALICE, hmac).expiry_timestamp_ms == NOW_MS
    assert served.described(ALICE) == []


def test_renewing_and_expiring_are_refused_with_kafkas_errors(served: Served):
    hmac = served.create(ALICE, renewers=[CAROL]).hmac
    for change in (served.renew, served.expire):
        unknown = change(ALICE, b"unknown", HOUR_MS)
        assert unknown.error_code == Errors.DELEGATION_TOKEN_NOT_FOUND
        other = change(DAVE, hmac, HOUR_MS)
        assert other.error_code == Errors.DELEGATION_TOKEN_OWNER_MISMATCH
        assert unknown.expiry_timestamp_ms == other.expiry_timestamp_ms == -1
    served.world.now_ms += 3 * HOUR_MS
    for change in (served.renew, served.expire):
        assert change(CAROL, hmac, 1).error_code == Errors.DELEGATION_TOKEN_EXPIRED


def test_all_owners_and_no_owners_are_not_the_same(served: Served):
    token_id = served.create(ALICE).token_id
    assert served.described(ALICE, None) == served.described(ALICE, [ALICE, BOB]) == [token_id]
    assert served.described(ALICE, []) == served.described(ALICE, [BOB]) == []


@pytest.mark.parametrize(
    ("operation", "resource_type"),
    [
        (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
        (AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
    ],
)
def test_tokens_of_others_are_described_to_whom_the_authorizer_allows(
    served: Served, operation: AclOperation, resource_type: ResourceType
):
    token_id = served.create(ALICE).token_id
    assert served.described(DAVE) == []
    name = token_id if resource_type is ResourceType.DELEGATION_TOKEN else "User:alice"
    served.authorizer = allowing(DAVE, operation, resource_type, name)
    assert served.described(DAVE) == [token_id]
    served.authorizer = allowing(BOB, operation, resource_type, name)
    assert served.described(DAVE) == []


def test_without_an_authorizer_everybody_may_as_in_kafka(served: Served):
    served.authorizer = ALLOW_ALL
    token_id = served.create(ALICE, owner=BOB).token_id
    assert served.described(DAVE) == [token_id]


def test_a_failure_of_zookeeper_is_an_error_and_a_log_line_without_the_hmac(
    served: Served, caplog: pytest.LogCaptureFixture
):
    hmac = served.create(ALICE).hmac
    served.broker.session.expire()
    answers = [
        served.create(ALICE),
        served.renew(ALICE, hmac),
        served.expire(ALICE, hmac),
        served.describe(ALICE),
    ]
    assert {answer.error_code for answer in answers} == {Errors.UNKNOWN_SERVER_ERROR}
    assert "CREATE_DELEGATION_TOKEN" in caplog.text
    assert hmac.hex() not in caplog.text
    assert repr(hmac) not in caplog.text
