"""Every response tells a client that uses more than its quota how long it must wait."""

from __future__ import annotations

import struct
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.quota.client_quota_manager import QuotaClient
from regent.core.quota.quota_entities import sanitised
from regent.core.security.session import ANONYMOUS
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from tests.support.disk_logs import Machine
from tests.support.fuzzed_requests import (
    CLIENT_ID,
    GENUINE,
    TOPIC,
    ask,
    ask_versions,
    build,
    framed,
    genuine_requests,
    request,
)
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import batch
from tests.support.sasl_users import PASSWORD, users_file
from tests.support.served_endpoint import ServedEndpoint
from tests.transport.kafka.raw_client import RawClient

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    from kafka.protocol.api_message import ApiMessage

HOUR_S = 3_600
KINDS = {int(kind.API_KEY): kind for kind, _ in GENUINE}
VALUES = {int(kind.API_KEY): values for kind, values in reversed(GENUINE)}
ANN, BOB = "ann@example, ü", "bob"


def told_ms(request_type: type[ApiMessage], version: int, body: bytes) -> int | None:
    """Return the time in a response; None: its version has no such field."""
    module = __import__(request_type.__module__, fromlist=["responses"])
    response_type = getattr(module, request_type.__name__.replace("Request", "Response"))
    fields = {field.name: field for field in response_type._struct._fields}
    field = fields.get("throttle_time_ms")
    if field is None or not field.for_version_q(version):
        return None
    return int(response_type.decode(body, version=version).throttle_time_ms)


def without_tags(body: bytes, key: KafkaApiKey, version: int) -> bytes:
    """Return a body without the tagged fields of the header, which the flexible ones have."""
    has_tags = key != KafkaApiKey.API_VERSIONS and version >= FIRST_FLEXIBLE_VERSION[key]
    return body[1:] if has_tags else body


@pytest.mark.timeout(300)  # elections and moves in it wait for their own time to be over
def test_every_response_tells_the_time_that_the_client_must_wait(tmp_path: Path):
    untold, told = [], 0
    with ExitStack() as stack:
        machine = Machine(tmp_path / "log")
        stack.callback(machine.end)
        served = ServedEndpoint(stack, machine.start(), Settings())
        address = ("127.0.0.1", served.port)
        genuine = genuine_requests(ask_versions(address))
        served.quotas.configure({"clients/<default>": {"request_percentage": "0.000001"}})
        client, now_ms = (
            QuotaClient(ANONYMOUS.name, CLIENT_ID.decode()),
            int(time.monotonic() * 1_000),
        )
        served.quotas.request.record(client, HOUR_S * 100, now_ms)
        for asked in genuine:
            number, version = struct.unpack_from(">hh", asked)
            if number not in KINDS:
                continue
            key = KafkaApiKey(number)
            time_ms = told_ms(KINDS[key], version, without_tags(ask(address, asked), key, version))
            if time_ms is not None:
                told += 1
                if time_ms != 1_000:
                    untold.append((KINDS[key].__name__, version))
    assert not untold
    assert told > 150


# --- of users who log in --------------------------------------------------------------------------


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[ServedEndpoint]:
    """A broker whose clients log in."""
    tables = {
        "broker": {
            "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
            "listener_security_protocol_map": "PLAINTEXT:SASL_PLAINTEXT,INSIDE:PLAINTEXT",
            "inter_broker_listener_name": "INSIDE",
        },
        "sasl": {
            "sasl_enabled_mechanisms": "PLAIN",
            "sasl_plain_users_file": str(users_file(tmp_path, ANN, BOB)),
        },
    }
    with ExitStack() as stack:
        yield ServedEndpoint(stack, MemoryLogs(), load_settings(None, tables), TOPIC)


def told_to(
    user: str, served: ServedEndpoint, key: KafkaApiKey, version: int, values: Mapping[str, Any]
) -> int | None:
    """Log in on a new connection, and return the time in the answer to a request."""
    with RawClient(served) as client:
        for data in (
            request(KafkaApiKey.SASL_HANDSHAKE, 1, b"\0\5PLAIN"),
            request(KafkaApiKey.SASL_AUTHENTICATE, 0, _bytes(f"\0{user}\0{PASSWORD}".encode())),
        ):
            client.send(framed(data))
            assert client.answer()[1][:2] == bytes(2)
        body = bytes(build(KINDS[key], values).encode(version=version))
        client.send(framed(request(key, version, body)))
        return told_ms(KINDS[key], version, without_tags(client.answer()[1], key, version))


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


PRODUCED = {
    **VALUES[KafkaApiKey.PRODUCE],
    "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch(b"a")}]}],
}
CREATED = {
    "timeout_ms": 1,
    "topics": [
        {"name": name, "num_partitions": 1, "replication_factor": 1}
        | {"assignments": [], "configs": []}
        for name in ("first", "second")
    ],
}


@pytest.mark.parametrize(
    ("quota", "limit", "key", "version", "values"),
    [
        ("producer_byte_rate", "1", KafkaApiKey.PRODUCE, 9, PRODUCED),
        ("consumer_byte_rate", "1", KafkaApiKey.FETCH, 11, VALUES[KafkaApiKey.FETCH]),
        ("request_percentage", "0.000001", KafkaApiKey.METADATA, 8, VALUES[KafkaApiKey.METADATA]),
        ("controller_mutation_rate", "0.001", KafkaApiKey.CREATE_TOPICS, 6, CREATED),
    ],
)
@pytest.mark.parametrize("of_client", ["", "/clients/<default>"])
def test_the_quota_of_a_user_limits_who_logs_in_as_this_user(
    secured: ServedEndpoint,
    quota: str,
    limit: str,
    key: KafkaApiKey,
    version: int,
    values: Mapping[str, Any],
    of_client: str,
):
    """All connections of the user count together, and nobody else's do."""
    told_to(BOB, secured, KafkaApiKey.PRODUCE, 9, PRODUCED)  # what is fetched
    secured.quotas.configure({f"users/{sanitised(ANN)}{of_client}": {quota: limit}})
    told_to(ANN, secured, key, version, values)
    assert told_to(ANN, secured, key, version, values)
    assert told_to(BOB, secured, key, version, values) == 0
