"""What tests with confluent-kafka share: one record out, all records in."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from regent.testing.waits import scaled

TIMEOUT_S = scaled(20.0)


def producer(bootstrap: str, **config: object) -> Producer:
    """Return a producer; in the names of the configuration ``_`` stands for ``.``."""
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **dotted(config)})


def consumer(bootstrap: str, **config: object) -> Consumer:
    """Return a consumer that is in no group's books."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "auto.offset.reset": "error",
            **dotted(config),
        }
    )


def dotted(config: dict[str, object]) -> dict[str, object]:
    """Return settings under the names librdkafka knows them by."""
    return {name.replace("_", "."): value for name, value in config.items()}


def produce(
    client: Producer, topic: str, values: Iterable[bytes], partition: int = 0, **more: Any
) -> list[Message]:
    """Produce and return what was delivered, in order; raises ``KafkaException`` if it failed."""
    delivered: list[Message] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered.append(message)
        else:
            failed.append(error)

    for value in values:
        client.produce(topic, value, partition=partition, on_delivery=on_delivery, **more)
    assert client.flush(TIMEOUT_S) == 0, "not everything was answered"
    if failed:
        raise KafkaException(failed[0])
    return delivered


def read_to_end(client: Consumer, *positions: TopicPartition) -> list[Message]:
    """Read these partitions from these positions to their ends, and close the consumer."""
    client.assign(list(positions))
    found: list[Message] = []
    unfinished = len(positions)
    with closing(client):
        while unfinished:
            message = client.poll(TIMEOUT_S)
            assert message is not None, f"nothing came; {len(found)} records before"
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished -= 1
            else:
                raise KafkaException(error)
    return found


def values_from(bootstrap: str, topic: str, offset: int, partition: int = 0) -> list[bytes | None]:
    """Return the values of a partition from an offset on."""
    position = TopicPartition(topic, partition, offset)
    return [message.value() for message in read_to_end(consumer(bootstrap), position)]


def code_of(error: KafkaException) -> int:
    """Return Kafka's error code."""
    code: int = error.args[0].code()
    return code
