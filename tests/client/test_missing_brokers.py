"""Since when a broker is missing, by those who can tell."""

from __future__ import annotations

from regent.client.missing_brokers import EndsOfBrokers, restless_brokers
from regent.core.errors import Errors
from regent.core.protocol.controller import (
    DepartedBroker,
    DescribeControllerResponse,
    ReturnedBroker,
)

ELECTED_MS, LEFT_MS = 7_200_000, 9_000_000


def test_of_a_broker_that_left_before_the_controller_was_elected_the_latest_time_is_said():
    """It was the controller itself, most likely."""
    left = DescribeControllerResponse(Errors.NONE, departed=(DepartedBroker(8, LEFT_MS),))
    ends = EndsOfBrokers({}, {}, left, ELECTED_MS)
    assert (
        ends.of(7)
        .sentence()
        .startswith("broker 7 not registered since 1970-01-01T02:00:00Z or earlier (")
    )
    assert ends.of(8).sentence().startswith("broker 8 not registered since 1970-01-01T02:30:00Z (")


def test_without_a_controller_no_time_is_said():
    ends = EndsOfBrokers({}, {}, None)
    assert ends.of(7).sentence().startswith("broker 7 not registered: it has said no reason: ")


def test_a_broker_that_comes_and_goes_is_named_and_one_restart_is_none():
    rows = (ReturnedBroker(7, 3, LEFT_MS, 12_000), ReturnedBroker(8, 2, LEFT_MS, 12_000))
    described = DescribeControllerResponse(Errors.NONE, returned=rows)
    assert list(restless_brokers(described)) == [
        (
            7,
            "broker 7 has left and come back 3 times in the last hour, last at"
            " 1970-01-01T02:30:00Z after 12 s",
        )
    ]
    assert list(restless_brokers(None)) == []
