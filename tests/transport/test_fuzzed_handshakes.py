"""Handshakes of TLS and CURVE that are changed on their way: nobody is let in by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgpack
import pytest

from regent.config.addresses import keyed_endpoint
from regent.core.protocol.api import ApiKey
from regent.core.security.roles import KeyOwner
from regent.testing.waits import eventually
from regent.transport.control.server import ControlServer
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.metrics import Closed
from regent.transport.kafka.tls import ServerTls
from tests.support.certificates import Authority
from tests.support.fuzzed_handshakes import CurveTarget, TlsTarget
from tests.support.keys import KEYS, context_for_test
from tests.transport.control.raw_peer import answer_ready

HANDSHAKES = 100


class OneKey:
    """Knows the key of the test only."""

    def peer(self, key: str) -> KeyOwner | None:
        return KeyOwner.broker(1) if key == KEYS.public else None

    def read_again(self, then: object) -> None:
        assert callable(then)
        then()


async def _answer(_: KafkaRequest) -> KafkaAnswer:
    return (b"answer",)


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[TlsTarget, KafkaListener]]:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    keys = ServerTls(authority.config(ssl_client_auth="required"))
    listener = KafkaListener(
        "127.0.0.1", 0, [KafkaApi(KafkaApiKey.METADATA, 0, 8, _answer)], tls=keys
    )
    stranger = authority.client_context()
    stranger.load_cert_chain(other.keystore("mallory"))
    good = authority.client_context("alice")
    listener.start()
    strangers = [authority.client_context(), stranger]
    yield TlsTarget(("127.0.0.1", listener.port), good, strangers), listener
    listener.close(0.1)


@pytest.fixture
def curve() -> Iterator[CurveTarget]:
    with ExitStack() as stack:
        server = ControlServer(
            KEYS, OneKey(), "tcp://127.0.0.1:0", answer_ready, name="test", max_outstanding=100
        )
        stack.callback(server.stop)
        server.start()
        context = context_for_test()
        stack.callback(context.destroy, 0)
        header = msgpack.packb([1, ApiKey.PLACEMENT_STATUS, 0, 5, "fuzz", None, None, None])
        endpoint = keyed_endpoint(server.endpoint, KEYS.public)
        yield CurveTarget(endpoint, context, [b"", header, b"\x80"])


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.nightly), 1], ids=["new", "same"])
def seed(request: pytest.FixtureRequest) -> int:
    """A new seed each night."""
    return random.randrange(2**32) if request.param is None else int(request.param)


def assert_let_in_as_allowed(target: TlsTarget | CurveTarget, seed: int) -> None:
    chance = random.Random(seed)
    assert target.handshake(chance, is_genuine=True).is_let_in
    for _ in range(HANDSHAKES):
        found = target.handshake(chance)
        assert found.is_allowed or not found.is_let_in, f"seed {seed}: {found}"
    assert target.handshake(chance, is_genuine=True).is_let_in


def test_a_changed_handshake_of_tls_lets_nobody_in(tls: tuple[TlsTarget, KafkaListener], seed: int):
    target, listener = tls
    assert_let_in_as_allowed(target, seed)
    eventually(lambda: listener.metrics.connections == 0, "no connection is left")
    assert listener.metrics.closed[Closed.FAILED] == 0


def test_a_changed_handshake_of_curve_lets_nobody_in(curve: CurveTarget, seed: int):
    assert_let_in_as_allowed(curve, seed)
