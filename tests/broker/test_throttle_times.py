"""Every response tells a client that uses more than its quota how long it must wait."""

from __future__ import annotations

import struct
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

import pytest

from regent.config.settings import Settings
from regent.core.quota.client_quota_manager import QuotaClient
from regent.core.security.session import ANONYMOUS
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from tests.support.disk_logs import Machine
from tests.support.fuzzed_requests import CLIENT_ID, GENUINE, ask, ask_versions, genuine_requests
from tests.support.served_endpoint import ServedEndpoint

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    from kafka.protocol.api_message import ApiMessage

HOUR_S = 3_600


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
    kinds = {int(kind.API_KEY): kind for kind, _ in GENUINE}
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
        for request in genuine:
            number, version = struct.unpack_from(">hh", request)
            if number not in kinds:
                continue
            key = KafkaApiKey(number)
            time_ms = told_ms(
                kinds[key], version, without_tags(ask(address, request), key, version)
            )
            if time_ms is not None:
                told += 1
                if time_ms != 1_000:
                    untold.append((kinds[key].__name__, version))
    assert not untold
    assert told > 150
