"""What a broker advertises beside what Kafka 3.9 does."""

from __future__ import annotations

import struct
from contextlib import ExitStack
from typing import Final

from regent.config.settings_file import load_settings
from regent.transport.kafka.api import KafkaApiKey
from tests.support.kafka_versions import KAFKA_3_9
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import ServedEndpoint
from tests.transport.kafka.raw_client import RawClient, request_bytes

OTHERS: Final = {KafkaApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1)}
"""Version 1 is the only one that librdkafka sends; it is refused as version 0 is."""


def test_a_broker_advertises_the_versions_of_kafka_3_9():
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), load_settings(None, {}))
        client = stack.enter_context(RawClient(served))
        client.send(request_bytes(api_key=KafkaApiKey.API_VERSIONS, version=0))
        _, body = client.answer()
    ranges = struct.iter_unpack(">hhh", body[6:])  # after the error code and the count
    advertised = {key: (first, last) for key, first, last in ranges}
    assert advertised == {key: OTHERS.get(key, KAFKA_3_9[key]) for key in advertised}
    assert KAFKA_3_9.keys() == advertised.keys()
