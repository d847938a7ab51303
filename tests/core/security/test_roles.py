"""Who may send which request."""

from __future__ import annotations

import pytest

from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import ControlHeader
from regent.core.protocol.controller import AlterPartitionRequest, ControlledShutdownRequest
from regent.core.security.roles import SENDERS, KeyOwner, Sender, is_about, may_send

OPERATOR = KeyOwner("alice")
BROKERS = [KeyOwner.broker(b) for b in range(3)]
CONTROL_REQUESTS = (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA)
FROM_BROKER_1 = ControlHeader(1, 7, 100, broker_id=2)


def test_every_api_has_a_row() -> None:
    assert SENDERS.keys() == set(ApiKey)


@pytest.mark.parametrize("api_key", CONTROL_REQUESTS)
def test_only_the_controller_of_the_header_sends_control_requests(api_key: ApiKey) -> None:
    senders = [peer for peer in (*BROKERS, OPERATOR) if may_send(peer, api_key, FROM_BROKER_1)]
    assert senders == [BROKERS[1]]
    assert not may_send(BROKERS[1], api_key, None)


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.SHUTDOWN_BROKER,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ],
)
def test_only_operators_give_orders(api_key: ApiKey) -> None:
    assert may_send(OPERATOR, api_key, None)
    assert not any(may_send(broker, api_key, None) for broker in BROKERS)


@pytest.mark.parametrize(
    "request_of_1",
    [ControlledShutdownRequest(1, 100), AlterPartitionRequest(1, 100, ())],
    ids=["ControlledShutdown", "AlterPartition"],
)
def test_a_broker_speaks_for_itself_only(request_of_1: object) -> None:
    for api_key in (ApiKey.ALTER_PARTITION, ApiKey.CONTROLLED_SHUTDOWN):
        assert not may_send(OPERATOR, api_key, None)
        assert may_send(BROKERS[0], api_key, None)
    assert [peer for peer in BROKERS if is_about(peer, request_of_1)] == [BROKERS[1]]


def test_only_brokers_forward_requests_of_clients() -> None:
    assert not may_send(OPERATOR, ApiKey.ENVELOPE, None)
    assert all(may_send(broker, ApiKey.ENVELOPE, None) for broker in BROKERS)


def test_brokers_and_operators_send_everything_else() -> None:
    others = [api_key for api_key, sender in SENDERS.items() if sender is Sender.MEMBER]
    assert len(others) == 6
    for api_key in others:
        assert all(may_send(peer, api_key, None) for peer in (*BROKERS, OPERATOR))


@pytest.mark.parametrize("name", ["broker-", "broker-x", "broker--1", "broker-²", "Broker-1"])
def test_a_name_that_is_not_exactly_a_brokers_is_an_operators(name: str) -> None:
    assert KeyOwner.named(name).broker_id is None


def test_a_key_named_after_a_broker_is_the_brokers() -> None:
    assert KeyOwner.named("broker-7") == KeyOwner.broker(7)
