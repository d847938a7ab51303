"""Clients of other projects log in, with each mechanism, with a right and a wrong secret."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import kafka
import kafka.errors
import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokens
from confluent_kafka import KafkaError, Message, Producer
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokens

from regent.testing.waits import scaled
from tests.broker.api.one_broker import OneBroker
from tests.support.memory_logs import MemoryLogs
from tests.support.sasl_users import MECHANISMS, NAME, PASSWORD, sasl_for_test, unsecured_token

TOPIC = "orders"
WAIT_S = scaled(20.0)
GIVE_UP_S = 1.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OneBroker]:
    broker = OneBroker(MemoryLogs(), {TOPIC: 1}, sasl=sasl_for_test(tmp_path))
    broker.start()
    yield broker
    broker.close()


def secret_of(mechanism: str, is_right: bool) -> str:
    if mechanism == "OAUTHBEARER":
        return unsecured_token(NAME) if is_right else unsecured_token(NAME, exp=1)
    return PASSWORD if is_right else "wrong"


def librdkafka_config(broker: OneBroker, mechanism: str, secret: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "log_level": 0,
    }
    if mechanism == "OAUTHBEARER":
        return {**config, "oauth_cb": lambda _: (secret, 2_000_000_000.0, NAME, {})}
    return {**config, "sasl.username": NAME, "sasl.password": secret}


def librdkafka_produces(broker: OneBroker, mechanism: str, secret: str) -> bool:
    """Whether a record is acknowledged; False: the client says that the login failed."""
    errors: list[KafkaError] = []
    config = librdkafka_config(broker, mechanism, secret)
    producer = Producer({**config, "error_cb": errors.append, "message.timeout.ms": 30_000})
    delivered: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered.append(message)

    producer.produce(TOPIC, b"value", callback=on_delivery)
    for _ in range(int(WAIT_S * 10)):
        producer.poll(0.1)
        if delivered:
            return True
        if any(error.code() == KafkaError._AUTHENTICATION for error in errors):
            producer.purge()
            return False
    raise AssertionError(f"neither a record nor a refusal: {errors}")


class Tokens(PythonTokens):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


class OtherTokens(AioTokens):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def kafka_python_produces(broker: OneBroker, mechanism: str, secret: str) -> bool:
    login: dict[str, Any] = {"sasl_plain_username": NAME, "sasl_plain_password": secret}
    if mechanism == "OAUTHBEARER":
        login = {"sasl_oauth_token_provider": Tokens(secret)}
    try:
        producer = kafka.KafkaProducer(
            bootstrap_servers=broker.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            bootstrap_timeout_ms=int(GIVE_UP_S * 1000),
            **login,
        )
    except (kafka.errors.KafkaError, kafka.errors.SaslAuthenticationFailedError):
        return False
    try:
        producer.send(TOPIC, b"value").get(timeout=WAIT_S)
    finally:
        producer.close(timeout=1)
    return True


def aiokafka_produces(broker: OneBroker, mechanism: str, secret: str) -> bool:
    login: dict[str, Any] = {"sasl_plain_username": NAME, "sasl_plain_password": secret}

    async def produce() -> bool:
        if mechanism == "OAUTHBEARER":
            login.clear()
            login["sasl_oauth_token_provider"] = OtherTokens(secret)
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            **login,
        )
        try:
            await producer.start()
            await producer.send_and_wait(TOPIC, b"value")
        except aiokafka.errors.KafkaError:
            return False
        finally:
            await producer.stop()
        return True

    return asyncio.run(produce())


Produces = Callable[[OneBroker, str, str], bool]
CLIENTS: list[Produces] = [librdkafka_produces, kafka_python_produces, aiokafka_produces]


@pytest.mark.parametrize("produces", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_with_the_right_secret_is_let_in(
    broker: OneBroker, produces: Produces, mechanism: str
) -> None:
    assert produces(broker, mechanism, secret_of(mechanism, is_right=True))
    assert broker.listener.metrics.successful_authentications >= 1
    assert broker.listener.metrics.failed_authentications == 0


@pytest.mark.parametrize("produces", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_with_a_wrong_secret_is_told_and_kept_out(
    broker: OneBroker, produces: Produces, mechanism: str
) -> None:
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        assert not produces(broker, mechanism, secret_of(mechanism, is_right=False))
        gc.collect()  # clients that fail in their constructors leave sockets
    assert broker.listener.metrics.successful_authentications == 0
    assert broker.listener.metrics.failed_authentications >= 1
