"""Decisions by ACLs, compared with a naive reading of Kafka's rules, and the log of them."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regent.core.security.acls import (
    CLUSTER,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    PatternType,
    Resource,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.authorizer import (
    ALLOW_ALL,
    MAX_LINES_PER_S,
    AclAuthorizer,
    Asked,
    AuthorizerSettings,
    Entries,
    PlaintextBrokers,
    normalised_host,
)
from regent.core.security.session import KafkaPrincipal, SecurityProtocol, Session

ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC = ResourceType.TOPIC
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALICE = KafkaPrincipal("User", "alice")
HOST = "10.0.0.1"
LOGGER = "kafka.authorizer.logger"

NAMES = ["a", "ab", "abc", "b", "*"]
OPERATIONS = [op for op in AclOperation if op is not AclOperation.ANY]
IMPLIED = {
    DESCRIBE: {DESCRIBE, READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
}

entries = st.builds(
    AccessControlEntry,
    st.sampled_from(["User:alice", "User:bob", "User:*", "Group:alice"]),
    st.sampled_from(["*", HOST, "10.0.0.2", f"::ffff:{HOST}"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([ALLOW, DENY]),
)
patterns = st.builds(
    ResourcePattern,
    st.sampled_from([TOPIC, ResourceType.GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from([LITERAL, PREFIXED]),
)
trees = st.dictionaries(patterns, st.frozensets(entries, max_size=3) | st.none(), max_size=6)


def session(name: str = "alice", host: str = HOST) -> Session:
    return Session(host, KafkaPrincipal("User", name))


def authorizer(
    acls: dict[ResourcePattern, Entries], super_users: str = "", *, everyone: bool = False
) -> AclAuthorizer:
    settings = AuthorizerSettings.of(super_users, allow_everyone_if_no_acl_found=everyone)
    made = AclAuthorizer(settings, lambda: 0.0)
    made.replace(acls)
    return made


def is_meant(entry: AccessControlEntry, user: str, host: str) -> bool:
    return entry.principal in (user, "User:*") and entry.host in ("*", host, f"::ffff:{host}")


def naive(
    acls: dict[ResourcePattern, Entries],
    user: str,
    host: str,
    operation: AclOperation,
    name: str,
    *,
    everyone: bool,
) -> bool:
    matching = [
        found
        for (kind, pattern, pattern_type), found in acls.items()
        if kind is TOPIC
        and (name.startswith(pattern) if pattern_type is PREFIXED else pattern in (name, "*"))
    ]
    if any(found is None for found in matching):
        return False
    rules = [entry for found in matching for entry in found or ()]
    if not rules:
        return everyone
    own = [entry for entry in rules if is_meant(entry, user, host)]
    all_ = AclOperation.ALL
    if any(e.permission_type is DENY and e.operation in (operation, all_) for e in own):
        return False
    allowing = IMPLIED.get(operation, {operation}) | {all_}
    return any(e.permission_type is ALLOW and e.operation in allowing for e in own)


@given(
    trees,
    st.sampled_from(["alice", "bob", "carol"]),
    st.sampled_from([HOST, "10.0.0.2"]),
    st.sampled_from(OPERATIONS),
    st.sampled_from(NAMES),
    st.booleans(),
)
def test_a_decision_is_that_of_a_naive_reading_of_all_acls(
    acls: dict[ResourcePattern, Entries],
    user: str,
    host: str,
    operation: AclOperation,
    name: str,
    everyone: bool,
):
    made = authorizer(acls, everyone=everyone)
    expected = naive(acls, f"User:{user}", host, operation, name, everyone=everyone)
    for _ in range(2):  # the second time it is remembered
        found = made.authorize(session(user, host), operation, Resource(TOPIC, name))
        assert found is expected


@given(trees, st.sampled_from(["alice", "bob"]), st.sampled_from(OPERATIONS), st.booleans())
def test_some_resource_of_a_type_may_be_used_unless_all_that_is_allowed_is_denied(
    acls: dict[ResourcePattern, Entries], user: str, operation: AclOperation, everyone: bool
):
    acls = {pattern: found for pattern, found in acls.items() if found is not None}

    def named(permission: AclPermissionType) -> set[ResourcePattern]:
        return {
            pattern
            for pattern, found in acls.items()
            for entry in found or ()
            if pattern.resource_type is TOPIC
            and is_meant(entry, f"User:{user}", HOST)
            and entry.permission_type is permission
            and entry.operation in (operation, AclOperation.ALL)
        }

    denied = named(DENY)

    def is_left(pattern: ResourcePattern) -> bool:
        if pattern.name == "*" and pattern.pattern_type is LITERAL:
            return True
        prefixes = {row.name for row in denied if row.pattern_type is PREFIXED}
        is_dominated = any(pattern.name.startswith(prefix) for prefix in prefixes)
        return not is_dominated and not (pattern.pattern_type is LITERAL and pattern in denied)

    expected = everyone or any(map(is_left, named(ALLOW)))
    if ResourcePattern(TOPIC, "*", LITERAL) in denied:
        expected = False
    made = authorizer(acls, everyone=everyone)
    assert made.authorize_by_resource_type(session(user), operation, TOPIC) is expected


@pytest.mark.parametrize("name", ["a", "*"])
def test_names_that_begin_so_are_denied_for_one_though_they_are_allowed_for_all(name: str):
    """Names that begin with ``*`` are not all names."""
    entries = (
        AccessControlEntry("User:*", "*", READ, ALLOW),
        AccessControlEntry("User:alice", "*", READ, DENY),
    )
    made = authorizer({ResourcePattern(ResourceType.GROUP, name, PREFIXED): frozenset(entries)})
    assert not made.authorize_by_resource_type(session("alice"), READ, ResourceType.GROUP)
    assert made.authorize_by_resource_type(session("bob"), READ, ResourceType.GROUP)


def test_a_super_user_may_do_everything_also_before_acls_are_read():
    settings = AuthorizerSettings.of(
        " User:CN=admin,O=us ; User:alice;", allow_everyone_if_no_acl_found=True
    )
    made = AclAuthorizer(settings, lambda: 0.0)
    admin = Session(HOST, KafkaPrincipal("User", "CN=admin,O=us"))
    assert made.authorize(admin, WRITE, CLUSTER)
    assert made.authorize(session("alice"), WRITE, CLUSTER)
    assert made.authorize_by_resource_type(admin, WRITE, TOPIC)
    assert not made.authorize(session("bob"), WRITE, CLUSTER)
    assert not made.authorize_by_resource_type(session("bob"), WRITE, TOPIC)
    denied = AccessControlEntry("User:*", "*", AclOperation.ALL, DENY)
    made.replace({ResourcePattern(*CLUSTER, LITERAL): frozenset({denied})})
    assert made.authorize(admin, WRITE, CLUSTER)


@pytest.mark.parametrize("text", ["alice", "User:", ":alice", "User:a;bob"])
def test_a_super_user_must_be_a_principal(text: str):
    with pytest.raises(ValueError, match="write Type:name"):
        AuthorizerSettings.of(text, allow_everyone_if_no_acl_found=False)


@pytest.mark.parametrize(
    ("host", "normalised"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("*", "*"),
        ("name.example", "name.example"),
    ],
)
def test_an_address_has_one_form(host: str, normalised: str):
    assert normalised_host(host) == normalised


def test_an_entry_for_a_host_is_for_all_forms_of_its_address():
    entry = AccessControlEntry("User:alice", "0:0:0:0:0:0:0:1", READ, ALLOW)
    made = authorizer({ResourcePattern(TOPIC, "t", LITERAL): frozenset({entry})})
    assert made.authorize(session(host="::1"), READ, Resource(TOPIC, "t"))
    assert not made.authorize(session(host="::2"), READ, Resource(TOPIC, "t"))


@pytest.mark.parametrize("host", ["10.0.0.7", "*"])
@pytest.mark.parametrize("user", ["User:alice", "User:*"])
@pytest.mark.parametrize("permission", [ALLOW, DENY])
def test_an_entry_counts_for_its_user_and_host_beside_those_of_others(
    host: str, user: str, permission: AclPermissionType
):
    pattern = ResourcePattern(TOPIC, "t", LITERAL)
    others = {AccessControlEntry(f"User:u{n}", f"10.0.0.{n}", READ, ALLOW) for n in range(9)}
    everybody = {AccessControlEntry("User:*", "*", READ, ALLOW)} if permission is DENY else set()
    entry = AccessControlEntry(user, host, READ, permission)
    made = authorizer({pattern: frozenset({*others, *everybody, entry})})
    is_meant = made.authorize(session(host="10.0.0.7"), READ, Resource(TOPIC, "t"))
    assert is_meant == (permission is ALLOW)


def test_other_acls_count_at_once():
    pattern = ResourcePattern(TOPIC, "t", LITERAL)
    made = authorizer({})
    assert not made.authorize(session(), READ, Resource(TOPIC, "t"))
    made.replace({pattern: frozenset({AccessControlEntry("User:*", "*", READ, ALLOW)})})
    assert made.authorize(session(), READ, Resource(TOPIC, "t"))
    made.replace({})
    assert not made.authorize(session(), READ, Resource(TOPIC, "t"))


def test_without_authentication_whoever_reaches_the_listener_of_brokers_is_one():
    made = PlaintextBrokers(authorizer({}))
    assert made.authorize(session(), AclOperation.CLUSTER_ACTION, CLUSTER)
    assert not made.authorize(session(), AclOperation.ALTER, CLUSTER)
    assert not made.authorize(session(), READ, Resource(TOPIC, "t"))
    by_tls = Session(HOST, ALICE, "SSL", SecurityProtocol.SSL)
    assert not made.authorize(by_tls, AclOperation.CLUSTER_ACTION, CLUSTER)


def test_without_an_authorizer_everything_is_allowed():
    assert ALLOW_ALL.authorize(session(), WRITE, CLUSTER)
    assert ALLOW_ALL.authorize_by_resource_type(session(), WRITE, TOPIC)


def test_a_denial_is_logged_in_the_words_of_kafka(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, LOGGER)
    made = authorizer({})
    made.authorize(session(), READ, Resource(TOPIC, "t"), Asked("Fetch", 3))
    made.authorize(session(), READ, Resource(TOPIC, "u"), Asked("Metadata", is_logged=False))
    assert caplog.messages == [
        "Principal = User:alice is Denied Operation = Read from host = 10.0.0.1"
        " on resource = Topic:LITERAL:t for request = Fetch with resourceRefCount = 3"
    ]


def test_a_denial_of_any_resource_counts_no_references(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, LOGGER)
    authorizer({}).authorize_by_resource_type(session(), WRITE, TOPIC, Asked("InitProducerId"))
    assert caplog.messages == [
        "Principal = User:alice is Denied Operation = Write from host = 10.0.0.1"
        " on resource = Topic:UNKNOWN:NONE for request = InitProducerId with resourceRefCount = 0"
    ]


def test_what_is_allowed_is_logged_at_the_level_debug(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, LOGGER)
    authorizer({}, "User:alice").authorize(session(), READ, CLUSTER, Asked("Fetch"))
    ((_, level, line),) = caplog.record_tuples
    assert (level, "is Allowed Operation = Read" in line) == (logging.DEBUG, True)


def test_names_of_strangers_stay_on_their_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, LOGGER)
    name = "x\nPrincipal = User:admin is Allowed"
    authorizer({}).authorize(session(name), READ, Resource(TOPIC, name))
    (line,) = caplog.messages
    assert "\n" not in line
    assert line.count(r"x\nPrincipal") == 2


def test_many_denials_are_counted_and_not_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, LOGGER)
    now_s = [1.0]
    settings = AuthorizerSettings.of("", allow_everyone_if_no_acl_found=False)
    made = AclAuthorizer(settings, lambda: now_s[0])
    for _ in range(MAX_LINES_PER_S + 50):
        made.authorize(session(), READ, CLUSTER)
    assert len(caplog.messages) == MAX_LINES_PER_S
    now_s[0] = 2.0
    made.authorize(session(), READ, CLUSTER)
    assert caplog.messages[MAX_LINES_PER_S] == "50 more denials were not logged"
    assert len(caplog.messages) == MAX_LINES_PER_S + 2
