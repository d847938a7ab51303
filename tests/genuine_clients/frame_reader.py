"""Reads one partition after the other with librdkafka, and prints what it gets of each.

A process of its own: there are frames that librdkafka never stops to decompress.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, KafkaError, TopicPartition

from regent.testing.waits import scaled

TIMEOUT_S = scaled(5.0)


def values_of(bootstrap: str, topic: str, partition: int) -> list[str] | None:
    """Return the values of a partition as hexadecimal text; None: they cannot be read."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[str] = []
    while (message := consumer.poll(TIMEOUT_S)) is not None:
        error = message.error()
        if error is not None:
            return values if error.code() == KafkaError._PARTITION_EOF else None
        values.append((message.value() or b"").hex())
    return None


def main(bootstrap: str, topic: str, *partitions: str) -> None:
    for partition in map(int, partitions):
        line = json.dumps([partition, values_of(bootstrap, topic, partition)])
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
