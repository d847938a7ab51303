"""Delegation tokens are read in all of Kafka's versions, and written as Kafka does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from regent.core.errors import BadDataError
from regent.core.security.delegation_token_manager import DelegationToken
from regent.core.security.session import KafkaPrincipal
from regent.zk.client.login import Acl
from regent.zk.znodes import (
    DelegationTokenChangeNotificationSequenceZNode,
    DelegationTokenInfoZNode,
    DelegationTokensZNode,
)

TOKEN_ID = "OtzW8ND8TPOEULCWw8bsKA"
ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")
ODD = KafkaPrincipal("User", "CN=Zoë *~ a+b,O=x/y:z")
TOKEN = DelegationToken(
    TOKEN_ID, ALICE, BOB, (BOB, ODD), 1_700_000_000_000, 1_700_604_800_000, 1_700_086_400_000
)
WRITTEN_BY_KAFKA_3_9_1 = (
    b'{"issueTimestamp":1700000000000,"renewers":["User%3Abob",'
    b'"User%3ACN%3DZo%C3%AB%20%2A%7E%20a%2Bb%2CO%3Dx%2Fy%3Az"],"tokenRequester":"User%3Abob",'
    b'"tokenId":"OtzW8ND8TPOEULCWw8bsKA","owner":"User%3Aalice","expiryTimestamp":1700086400000,'
    b'"maxTimestamp":1700604800000,"version":3}'
)


def data(**changed: object) -> bytes:
    fields = {**json.loads(WRITTEN_BY_KAFKA_3_9_1), **changed}
    return json.dumps({k: v for k, v in fields.items() if v is not None}).encode()


def test_paths_are_kafkas():
    assert DelegationTokenInfoZNode.path(TOKEN_ID) == f"/delegation_token/tokens/{TOKEN_ID}"
    change = DelegationTokenChangeNotificationSequenceZNode
    assert change.PATH_PREFIX == "/delegation_token/token_changes/token_change_"


def test_only_brokers_may_read_tokens():
    assert DelegationTokenInfoZNode.acl is DelegationTokensZNode.acl is Acl.SENSITIVE


def test_a_token_is_read_and_written_as_by_kafka():
    assert DelegationTokenInfoZNode.decode(WRITTEN_BY_KAFKA_3_9_1, TOKEN_ID) == TOKEN
    written = DelegationTokenInfoZNode.encode(TOKEN)
    assert json.loads(written) == json.loads(WRITTEN_BY_KAFKA_3_9_1)


@pytest.mark.parametrize("version", [1, 2])
def test_the_requester_of_an_earlier_version_is_the_owner(version: int):
    read = DelegationTokenInfoZNode.decode(data(version=version, tokenRequester=None), TOKEN_ID)
    assert read == replace(TOKEN, requester=ALICE)


def test_a_plus_is_a_space_as_javas_decoder_reads_it():
    read = DelegationTokenInfoZNode.decode(data(owner="User:a+b"), TOKEN_ID)
    assert read.owner == KafkaPrincipal("User", "a b")


def test_a_principal_may_have_colons():
    read = DelegationTokenInfoZNode.decode(data(owner="User%3Aa:b:c"), TOKEN_ID)
    assert read.owner == KafkaPrincipal("User", "a:b:c")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[]",
        data(version=0),
        data(version=4),
        data(version=None),
        data(owner="alice"),
        data(owner=None),
        data(tokenRequester=None),
        data(renewers=None),
        data(renewers=[1]),
        data(renewers=["bob"]),
        data(issueTimestamp="1700000000000"),
        data(expiryTimestamp=2**63),
        data(maxTimestamp=1.5),
        data(tokenId="another"),
    ],
)
def test_bad_data_are_refused(bad: bytes):
    with pytest.raises(BadDataError, match="/delegation_token/tokens/<id>"):
        DelegationTokenInfoZNode.decode(bad, TOKEN_ID)


def test_a_notification_is_the_bare_id():
    change = DelegationTokenChangeNotificationSequenceZNode
    assert change.encode(TOKEN_ID) == TOKEN_ID.encode()
    assert change.decode(TOKEN_ID.encode()) == TOKEN_ID
    with pytest.raises(BadDataError):
        change.decode(b"\xff")


def test_kafkas_empty_parent_has_no_check_of_the_secret():
    assert DelegationTokensZNode.decode(b"") is None
    assert DelegationTokensZNode.decode(DelegationTokensZNode.encode("5ec7e7")) == "5ec7e7"
