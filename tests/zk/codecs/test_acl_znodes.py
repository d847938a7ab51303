"""ACLs and their notifications, byte for byte as Kafka writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.core.errors import BadDataError
from regent.core.security.acls import (
    OPERATIONS,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.zk.znodes import (
    AclChangeNotificationSequenceZNode,
    ExtendedAclChangeNotificationSequenceZNode,
    PrefixedResourceZNode,
    ResourceZNode,
)

ALICE = AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
GOLDEN = (
    b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read"'
    b',"host":"*"}]}'
)
LITERAL = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "a:b", PatternType.LITERAL)
PREFIXED = ResourcePattern(ResourceType.TOPIC, "pre", PatternType.PREFIXED)

entries = st.builds(
    AccessControlEntry,
    st.text().map("User:{}".format),
    st.text(),
    st.sampled_from([op for op in AclOperation if op is not AclOperation.ANY]),
    st.sampled_from([AclPermissionType.ALLOW, AclPermissionType.DENY]),
)


def test_entries_have_the_bytes_of_kafka():
    assert ResourceZNode.encode({ALICE}) == PrefixedResourceZNode.encode({ALICE}) == GOLDEN
    assert ResourceZNode.decode(GOLDEN) == {ALICE}


def test_notifications_have_the_bytes_of_kafka():
    row, extended = AclChangeNotificationSequenceZNode, ExtendedAclChangeNotificationSequenceZNode
    assert row.encode(LITERAL) == b"TRANSACTIONAL_ID:a:b"
    assert (
        extended.encode(PREFIXED)
        == b'{"version":1,"resourceType":"TOPIC","name":"pre","patternType":"PREFIXED"}'
    )


@pytest.mark.parametrize(
    "data", [b"TRANSACTIONAL_ID:a:b", b"TransactionalId:a:b", b"transactionalid:a:b"]
)
def test_the_type_of_a_notification_may_be_in_any_case(data: bytes):
    assert AclChangeNotificationSequenceZNode.decode(data) == LITERAL


@pytest.mark.parametrize("words", [("TOPIC", "PREFIXED"), ("Topic", "prefixed")])
def test_the_words_of_an_extended_notification_may_be_in_any_case(words: tuple[str, str]):
    kind, pattern = words
    data = f'{{"version":1,"resourceType":"{kind}","name":"pre","patternType":"{pattern}"}}'
    assert ExtendedAclChangeNotificationSequenceZNode.decode(data.encode()) == PREFIXED


@given(st.frozensets(entries, max_size=4))
def test_entries_are_read_as_they_were_written(written: frozenset[AccessControlEntry]):
    assert ResourceZNode.decode(ResourceZNode.encode(written)) == written


def test_a_znode_without_data_has_no_entries():
    assert ResourceZNode.decode(b"") == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"{}",
        GOLDEN.replace(b'"version":1', b'"version":2'),
        GOLDEN.replace(b"Read", b"Reed"),
        GOLDEN.replace(b"Read", b"Any"),
        GOLDEN.replace(b"Read", b"READ"),
        GOLDEN.replace(b"Allow", b"Maybe"),
        GOLDEN.replace(b"User:alice", b"alice"),
        GOLDEN.replace(b'"host":"*"', b'"host":null'),
        GOLDEN.replace(b'"acls":[', b'"acls":[1,'),
    ],
)
def test_damaged_entries_are_refused(data: bytes):
    with pytest.raises(BadDataError):
        ResourceZNode.decode(data)


@pytest.mark.parametrize("data", [b"", b"TOPIC", b"TOPIC:", b"Nonsense:t", b"\xff:t", b"ANY:t"])
def test_damaged_notifications_are_refused(data: bytes):
    with pytest.raises(BadDataError):
        AclChangeNotificationSequenceZNode.decode(data)
    with pytest.raises(BadDataError):
        ExtendedAclChangeNotificationSequenceZNode.decode(data)


def test_the_operations_of_a_type_are_the_bit_fields_of_kafka():
    fields = {kind: sum(1 << op for op in found) for kind, found in OPERATIONS.items()}
    assert fields == {
        ResourceType.TOPIC: 3576,
        ResourceType.GROUP: 328,
        ResourceType.CLUSTER: 8096,
        ResourceType.TRANSACTIONAL_ID: 272,
        ResourceType.DELEGATION_TOKEN: 256,
        ResourceType.USER: 24576,
    }
