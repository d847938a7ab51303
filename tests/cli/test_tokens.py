"""``tokens``: delegation tokens by a broker's Kafka port."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from regent.broker.api.delegation_tokens import delegation_token_apis
from regent.core.security.authorizer import AclAuthorizer, AuthorizerSettings
from regent.core.security.session import KafkaPrincipal, SecurityProtocol
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaRequest
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.token_world import ALICE, DAVE, NOW_MS, TokenWorld

NOBODY_MAY = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
NOBODY_MAY.replace({})


class TokenPort:
    """A cluster whose brokers have tokens; ``user`` is who asks, None: the broker does not know."""

    def __init__(self, cluster: FakeCluster, executor: ThreadPoolExecutor) -> None:
        self.tokens = TokenWorld()
        self.broker = self.tokens.broker()
        self.user: KafkaPrincipal | None = ALICE
        self.cluster = cluster
        apis = delegation_token_apis(self.broker.tokens, executor)
        cluster.add_broker(0, port=cluster.listen(more=list(map(self._as_user, apis))))
        cluster.elect(0)

    def _as_user(self, api: KafkaApi) -> KafkaApi:
        """The API for a client that has logged in."""

        async def handle(request: KafkaRequest) -> KafkaAnswer:
            request.authorizer = NOBODY_MAY
            if self.user is not None:
                request.session = replace(
                    request.session,
                    principal=self.user,
                    security_protocol=SecurityProtocol.SASL_SSL,
                )
            return await api.handle(request)

        return KafkaApi(api.key, api.min_version, api.max_version, handle)

    def create(self, *options: str) -> str:
        """Create a token; return its id."""
        token_id: str = self.cluster.json("tokens", "create", *options)["token_id"]
        return token_id


@pytest.fixture
def port(cluster: FakeCluster) -> Iterator[TokenPort]:
    with ThreadPoolExecutor(1) as executor:
        yield TokenPort(cluster, executor)


def test_a_token_is_created_and_printed_with_its_password(port: TokenPort):
    answer = port.cluster.json(
        *("tokens", "create", "--renewer-principal", "User:bob"),
        *("--renewer-principal", "User:carol", "--max-life-time-period", "3600000"),
    )
    (known,) = port.broker.tokens.describe(ALICE, None, lambda _: False)
    assert answer == {
        "token_id": known.token.token_id,
        "owner": "User:alice",
        "requester": "User:alice",
        "renewers": ["User:bob", "User:carol"],
        "issued": "2023-11-14T22:13:20Z",
        "expires": "2023-11-14T23:13:20Z",
        "ends": "2023-11-14T23:13:20Z",
        "hmac": base64.b64encode(known.hmac).decode(),
    }


def test_tokens_are_described_without_their_passwords_unless_asked(port: TokenPort):
    token_id = port.create("--renewer-principal", "User:bob")
    heading, line = port.cluster.run("tokens", "describe").stdout.splitlines()
    assert heading.split() == [
        *("TOKEN-ID", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "ENDS")
    ]
    assert line.split()[:4] == [token_id, "User:alice", "User:alice", "User:bob"]
    (row,) = port.cluster.json("tokens", "describe", "--hmac")
    assert row["hmac"]
    assert port.cluster.json("tokens", "describe", "--owner-principal", "User:dave") == []


def test_a_token_is_renewed_and_deleted_by_its_id(port: TokenPort):
    token_id = port.create()
    renewed = port.cluster.run("tokens", "renew", token_id, "--renew-time-period", "5000")
    assert renewed.stdout == f"Token {token_id} expires at 2023-11-14T22:13:25Z.\n"
    shortened = port.cluster.run("tokens", "expire", token_id, "--expiry-time-period", "1000")
    assert shortened.stdout == f"Token {token_id} expires at 2023-11-14T22:13:21Z.\n"
    stored = port.tokens.stored(token_id)
    assert stored is not None
    assert stored.expiry_timestamp_ms == NOW_MS + 1_000
    assert port.cluster.run("tokens", "expire", token_id).stdout == f"Deleted token {token_id}.\n"
    assert port.tokens.stored(token_id) is None


def test_a_refusal_is_one_line_with_the_remedy(port: TokenPort):
    run = port.cluster.run
    token_id = port.create()
    assert "there is no token nothing" in failing(run("tokens", "renew", "nothing"))
    assert "CreateTokens" in failing(run("tokens", "create", "--owner-principal", "User:bob"))
    assert "must be a user" in failing(run("tokens", "create", "--renewer-principal", "Group:g"))
    port.tokens.now_ms += 10**12
    assert "it can only be deleted" in failing(run("tokens", "renew", token_id))
    port.user = DAVE
    assert f"there is no token {token_id}" in failing(run("tokens", "expire", token_id))
    port.user = None
    assert "a listener with a login" in failing(run("tokens", "describe"))


def test_a_requester_is_told_that_it_may_not_renew(port: TokenPort):
    created = port.broker.tokens.create(DAVE, ALICE, (), -1)
    result = port.cluster.run("tokens", "renew", created.token.token_id)
    assert "only the owner of a token and its renewers" in failing(result)


def test_a_principal_has_a_type_and_a_name(cluster: FakeCluster):
    for principal in ("alice", "User:", ":alice"):
        result = cluster.run("tokens", "create", "--owner-principal", principal)
        assert result.exit_code == 2
        assert "must be TYPE:NAME" in result.stderr


def test_a_time_that_no_request_can_have_is_one_line(port: TokenPort):
    result = port.cluster.run("tokens", "create", "--max-life-time-period", "9" * 20)
    assert "a number does not fit into a CreateDelegationTokenRequest" in failing(result)


def test_no_option_takes_a_password(cluster: FakeCluster):
    for command in ("renew", "expire", "create"):
        assert "--hmac" not in cluster.run("tokens", command, "--help").stdout


def test_brokers_that_cannot_be_reached_are_one_line(cluster: FakeCluster):
    cluster.add_broker(0, port=1)
    cluster.elect(0)
    line = failing(cluster.run("tokens", "describe"))
    assert line.startswith("no broker can be reached: 127.0.0.1:1: ")
