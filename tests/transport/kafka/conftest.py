"""Listeners on free ports, closed afterwards.

kafka-python is loaded before warnings are errors: it uses what Python 3.11 calls deprecated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol

import pytest

from regent.core.quota.quota_managers import QuotaManagers
from regent.transport.descriptors import OF_THIS_PROCESS, Descriptors
from regent.transport.kafka.acceptor import SharedLimits
from regent.transport.kafka.api import KafkaApi
from regent.transport.kafka.limits import KafkaLimits
from regent.transport.kafka.listener import DEFAULT_LIMITS, KafkaListener
from regent.transport.kafka.tls import ServerTls

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kafka  # noqa: F401


class Listen(Protocol):
    def __call__(
        self,
        apis: Sequence[KafkaApi],
        limits: KafkaLimits = DEFAULT_LIMITS,
        descriptors: Descriptors | None = None,
        quotas: QuotaManagers | None = None,
        tls: ServerTls | None = None,
    ) -> KafkaListener: ...


@pytest.fixture
def listen() -> Iterator[Listen]:
    with ExitStack() as stack:

        def start(
            apis: Sequence[KafkaApi],
            limits: KafkaLimits = DEFAULT_LIMITS,
            descriptors: Descriptors | None = None,
            quotas: QuotaManagers | None = None,
            tls: ServerTls | None = None,
        ) -> KafkaListener:
            name = "test-listener"
            shared = SharedLimits(limits, quotas, descriptors or OF_THIS_PROCESS)
            listener = KafkaListener("127.0.0.1", 0, apis, limits, name, shared=shared, tls=tls)
            listener.start()
            stack.callback(listener.close, 0.1)
            return listener

        yield start
