"""Znodes of access control and of token changes, byte for byte as Kafka writes them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from regent.core.errors import BadDataError
from regent.zk.codecs.security_znodes import (
    AccessControlEntry,
    DelegationTokenChangeZNode,
    ExtendedAclChangeZNode,
    LiteralAclChangeZNode,
    ResourcePattern,
    ResourceZNode,
)

ALICE = AccessControlEntry("User:alice", "Allow", "Read", "*")
BOB = AccessControlEntry("User:bob", "Deny", "Write", "10.0.0.1")


def test_an_access_control_list_keeps_the_sequence_of_its_entries():
    data = ResourceZNode.encode([ALICE, BOB])
    assert json.loads(data)["acls"][0] == {
        "principal": "User:alice",
        "permissionType": "Allow",
        "operation": "Read",
        "host": "*",
    }
    assert ResourceZNode.decode(data) == (ALICE, BOB)


def test_the_path_of_a_list_depends_on_its_pattern():
    assert ResourceZNode.path(ResourcePattern("Topic", "orders")) == "/kafka-acl/Topic/orders"
    prefixed = ResourcePattern("Topic", "ord", "PREFIXED")
    assert ResourceZNode.path(prefixed) == "/kafka-acl-extended/prefixed/Topic/ord"


def test_a_change_of_a_literal_resource_is_text_and_names_may_have_colons():
    resource = ResourcePattern("Group", "a:b")
    assert LiteralAclChangeZNode.encode(resource) == b"Group:a:b"
    assert LiteralAclChangeZNode.decode(b"Group:a:b") == resource


def test_a_change_of_another_pattern_is_json():
    resource = ResourcePattern("Topic", "ord", "PREFIXED")
    assert ExtendedAclChangeZNode.decode(ExtendedAclChangeZNode.encode(resource)) == resource


def test_a_changed_token_is_named_by_its_bare_id():
    assert DelegationTokenChangeZNode.encode("t-1") == b"t-1"
    assert DelegationTokenChangeZNode.decode(b"t-1") == "t-1"


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (LiteralAclChangeZNode.decode, b"no colon"),
        (LiteralAclChangeZNode.decode, b":name"),
        (ResourceZNode.decode, b'{"version":1}'),
        (ResourceZNode.decode, b'{"version":1,"acls":[{"principal":1}]}'),
    ],
)
def test_invalid_data_are_refused(decode: Callable[[bytes], object], data: bytes):
    with pytest.raises(BadDataError):
        decode(data)
