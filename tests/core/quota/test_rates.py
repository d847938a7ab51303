"""Rates and permits: what Kafka's own classes answer for the same records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regent.core.quota.quota_config import QuotaWindow
from regent.core.quota.rates import Rate, TokenBucket

HISTORIES: Sequence[dict[str, Any]] = json.loads(
    Path(__file__).with_name("rates_of_kafka.json").read_text()
)
"""Each step has a time, what is recorded, and the waits after it by ``QuotaUtils.throttleTime`` of
a ``Rate``, and by ``ControllerMutationQuotaManager`` of a ``TokenBucket``, of Kafka 3.9.1."""

WINDOW = QuotaWindow(11, 1_000)


@pytest.mark.parametrize("history", HISTORIES)
def test_clients_wait_as_long_as_with_kafka(history: dict[str, Any]):
    window = QuotaWindow(history["samples"], history["sample_ms"])
    rate, bucket, bound = Rate(window), TokenBucket(window), history["bound"]
    for now_ms, amount, rate_wait_ms, permits_wait_ms in history["steps"]:
        rate.record(amount, now_ms)
        bucket.record(amount, bound, now_ms)
        assert rate.throttle_time_ms(bound, now_ms) == pytest.approx(rate_wait_ms, abs=1)
        assert bucket.throttle_time_ms(bound, now_ms) == pytest.approx(permits_wait_ms, abs=1)


def test_an_amount_that_is_taken_back_does_not_count():
    rate = Rate(WINDOW)
    rate.record(100, 0)
    rate.record(1_000, 500)
    rate.record(-1_000, 500)
    assert rate.throttle_time_ms(10, 500) == 0


def test_a_rate_is_forgotten_after_its_window():
    rate = Rate(WINDOW)
    rate.record(1_000_000, 0)
    assert rate.throttle_time_ms(1, 10_999) > 0
    assert rate.throttle_time_ms(1, 11_000) == 0


def test_permits_that_are_not_used_add_up_to_those_of_the_window():
    bucket = TokenBucket(WINDOW)
    bucket.record(11, 1, 0)
    assert bucket.throttle_time_ms(1, 0) == 0
    bucket.record(12, 1, 1_000_000)
    assert bucket.throttle_time_ms(1, 1_000_000) == 1_000
