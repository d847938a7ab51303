"""Who may connect to a listener, as its protocol, its address and its broker's settings say."""

from __future__ import annotations

from typing import Any

import pytest

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Severity
from regent.client.doctor.listener_check import (
    Listener,
    access,
    check_listeners,
    listeners_told,
    local_access,
)
from regent.core.model import BrokerInfo, EndPoint
from regent.core.security.session import SecurityProtocol

LOCAL, REMOTE = "127.0.0.1", "192.0.2.1"
OK, WARNING, PROBLEM = Severity.OK, Severity.WARNING, Severity.PROBLEM
PLAIN = {"sasl.enabled.mechanisms": "SCRAM-SHA-256, PLAIN"}
SCRAM = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
MUTUAL = {"ssl.client.auth": "required"}


@pytest.mark.parametrize(
    ("protocol", "host", "settings", "severity"),
    [
        ("PLAINTEXT", LOCAL, {}, OK),
        ("PLAINTEXT", "::1", {}, OK),
        ("PLAINTEXT", LOCAL, {"regent.local.users": "any"}, WARNING),
        ("PLAINTEXT", REMOTE, {}, PROBLEM),
        ("PLAINTEXT", "0.0.0.0", {}, PROBLEM),
        ("PLAINTEXT", "::", {}, PROBLEM),
        ("PLAINTEXT", REMOTE, {"regent.allow.unauthenticated": "true"}, PROBLEM),
        ("NO_SUCH", REMOTE, {}, PROBLEM),
        ("SSL", REMOTE, {}, PROBLEM),
        ("SSL", REMOTE, {"ssl.client.auth": "requested"}, PROBLEM),
        ("SSL", REMOTE, MUTUAL, OK),
        ("SSL", REMOTE, {**MUTUAL, "listener.name.clients.ssl.client.auth": "none"}, PROBLEM),
        ("SSL", REMOTE, {"listener.name.clients.ssl.client.auth": "required"}, OK),
        ("SSL", LOCAL, {"regent.local.users": "any"}, WARNING),
        ("SASL_PLAINTEXT", LOCAL, PLAIN, OK),
        ("SASL_PLAINTEXT", LOCAL, {**SCRAM, "regent.local.users": "any"}, OK),
        ("SASL_PLAINTEXT", REMOTE, SCRAM, WARNING),
        ("SASL_PLAINTEXT", REMOTE, PLAIN, PROBLEM),
        ("SASL_PLAINTEXT", REMOTE, {"sasl.enabled.mechanisms": "OAUTHBEARER"}, PROBLEM),
        ("SASL_SSL", REMOTE, PLAIN, OK),
    ],
)
def test_beyond_loopback_a_listener_needs_a_login(
    protocol: str, host: str, settings: dict[str, str], severity: Severity
):
    found = access(Listener.of("CLIENTS", protocol, host), settings, "alice")
    assert found.severity is severity
    assert bool(found.remedy) is (severity is not OK)


def test_on_loopback_the_setting_says_which_users():
    assert local_access("same", "alice").who == "processes of alice"
    assert local_access("same, prometheus", "alice").who == "processes of alice and prometheus"
    assert local_access("any", "alice").who == "every user of this machine"
    silent = access(Listener.of("PLAINTEXT", "PLAINTEXT", LOCAL), None, "alice")
    assert silent.why == "the uid check, if local_users has its default"


def test_listeners_are_read_as_kafka_writes_them():
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:9092,CLIENTS://[::]:9093, BAD",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL",
    }
    assert listeners_told(settings) == {
        9092: Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1"),
        9093: Listener("CLIENTS", SecurityProtocol.SASL_SSL, "::"),
    }


def broker(host: str, protocol: str = "PLAINTEXT", **more: Any) -> BrokerInfo:
    return BrokerInfo(7, (EndPoint(protocol, host, 9092, protocol),), **more)


def messages(info: BrokerInfo, **settings: str) -> list[tuple[str, Severity]]:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    cluster = ExaminedCluster(registrations={7: info}, settings={7: dotted})
    return [(found.message, found.severity) for found in check_listeners(cluster)]


def test_a_registered_listener_without_a_login_is_a_problem_that_of_followers_too():
    info = broker(REMOTE, replication_endpoint=f"tcp://{REMOTE}:9192")
    (clients, of_clients), (followers, of_followers) = messages(info)
    assert of_clients is of_followers is PROBLEM
    assert clients.startswith(f"broker 7 has the listener PLAINTEXT (PLAINTEXT) at {REMOTE}: every")
    assert followers.startswith("broker 7 has the listener replication ")


def test_the_control_port_among_the_endpoints_is_no_listener_for_kafkas_clients():
    control = EndPoint("CONTROLLER", REMOTE, 9100, "PLAINTEXT")
    info = BrokerInfo(7, (control,), control_endpoint=f"tcp://{REMOTE}:9100")
    assert messages(info) == []


@pytest.mark.parametrize(
    ("protocol", "settings", "expected"),
    [
        ("SASL_SSL", {}, "has no authorizer"),
        ("PLAINTEXT", {}, None),
        ("SASL_SSL", {"authorizer_class_name": "a", "super_users": "User:admin"}, None),
        (
            "SASL_SSL",
            {"authorizer_class_name": "a", "allow_everyone_if_no_acl_found": "true"},
            "lets every client use a resource without ACLs",
        ),
        (
            "SASL_SSL",
            {"authorizer_class_name": "a", "super_users": "User:admin; User:ANONYMOUS"},
            "has the super user User:ANONYMOUS",
        ),
        (
            "SASL_SSL",
            {
                "authorizer_class_name": "a",
                "sasl_enabled_mechanisms": "OAUTHBEARER",
                "regent_sasl_oauthbearer_unsecured": "true",
            },
            "takes tokens without a signature",
        ),
        ("PLAINTEXT", {"regent_allow_unauthenticated": "true"}, "has allow_unauthenticated"),
    ],
)
def test_settings_that_let_everybody_in_are_named(
    protocol: str, settings: dict[str, str], expected: str | None
):
    bad = [text for text, severity in messages(broker(LOCAL, protocol), **settings) if severity]
    if expected is None:
        assert bad == []
    else:
        (text,) = bad
        assert text.startswith(f"broker 7 {expected}")
