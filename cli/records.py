"""``produce`` and ``consume``: write and read records in a shell, with librdkafka.

There are no consumer groups yet: ``consume`` reads every partition by assignment.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import BinaryIO, Final

import click
import orjson
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from regent.admin.cluster_connection import Cluster, pass_cluster
from regent.admin.wording import counted
from regent.cli.output import Output, examples, output_option
from regent.cli.topic_options import refuse_empty
from regent.cli.waiting import timeout_option
from regent.config.addresses import bracketed
from regent.config.command_line import program
from regent.core.errors import BadDataError, RegentError

_CLIENT: Final = {"client.id": "regent-cli", "log_level": 0}  # errors are reported by this module
_POLL_S: Final = 0.2
_MAX_LINE_BYTES: Final = 32 * 1024 * 1024


class RecordsError(RegentError):
    """Records could not be written or read."""


@click.command(
    epilog=examples(
        "produce payments < lines.txt", "produce payments --key-separator : < lines.txt"
    )
)
@click.argument("topic")
@click.option("--key-separator", metavar="TEXT", help="Separator of key and value in a line.")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Which replicas must acknowledge a record: all in sync, the leader, or none.",
)
@timeout_option("Time for the acknowledgement of a record.")
@pass_cluster
def produce(
    cluster: Cluster, /, topic: str, key_separator: str | None, acks: str, timeout_ms: int
) -> None:
    """Write each line of the standard input as a record, and wait until all are acknowledged.

    With --acks all each record is written once, even if brokers fail.
    """
    refuse_empty(topic)
    producer = Producer(
        {
            **_CLIENT,
            "bootstrap.servers": _bootstrap(cluster),
            "acks": acks,
            "enable.idempotence": acks == "all",
            "message.timeout.ms": max(timeout_ms, 1),
        },
    )
    deliveries = _Deliveries(producer, topic)
    try:
        for key, value in _lines(sys.stdin.buffer, key_separator):
            deliveries.send(key, value)
    finally:  # send what was read, even after Ctrl-C
        producer.flush()
    if deliveries.failure is not None:
        raise RecordsError(
            f"topic {topic}: {deliveries.failed} of {counted(deliveries.total, 'record')} not"
            f" acknowledged: {_reason(deliveries.failure, topic, acks)}"
        )
    click.echo(f"Wrote {counted(deliveries.total, 'record')} to {topic}.")


class _Deliveries:
    """Sends records, and counts acknowledgements and failures."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.total = 0
        self.failed = 0
        self.failure: KafkaError | None = None
        self._producer = producer
        self._topic = topic

    def send(self, key: bytes | None, value: bytes) -> None:
        """Send a record once fewer than 100,000 wait for acknowledgement."""
        self.total += 1
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._on_delivery)
            except BufferError:
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                raise RecordsError(f"record {self.total}: {error.args[0].str()}") from None
            else:
                self._producer.poll(0)
                return

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failed += 1
            self.failure = error if self.failure is None else self.failure


def _reason(error: KafkaError, topic: str, acks: str) -> str:
    """Return why a record was not acknowledged; a refusal that librdkafka retries is a timeout."""
    if error.code() != KafkaError._MSG_TIMED_OUT or acks != "all":
        return error.str()
    return (
        f"{error.str()}: the broker may have refused it because too few replicas are in sync (see"
        f" `{program()} topics describe {topic}`)"
    )


def _lines(stream: BinaryIO, separator: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield key and value of each line; raises ``RecordsError`` for a line that is too long."""
    while line := stream.readline(_MAX_LINE_BYTES):
        if len(line) == _MAX_LINE_BYTES:
            raise RecordsError(f"a line is longer than {_MAX_LINE_BYTES} bytes: too large a record")
        record = line.removesuffix(b"\n")
        key, found, value = record.partition(separator.encode()) if separator else (b"", b"", b"")
        yield (key, value) if found else (None, record)


@click.command(epilog=examples("consume payments", "consume payments --follow -o json"))
@click.argument("topic")
@click.option("--follow", "-f", is_flag=True, help="Print new records as they come, until Ctrl-C.")
@timeout_option("Time to wait for the next record, until the end of every partition is reached.")
@output_option
@pass_cluster
def consume(cluster: Cluster, /, topic: str, follow: bool, timeout_ms: int, output: str) -> None:
    """Print the records of a topic, from the beginning to the end of each partition."""
    refuse_empty(topic)
    consumer = Consumer(
        {
            **_CLIENT,
            "bootstrap.servers": _bootstrap(cluster),
            "group.id": "regent-cli",  # librdkafka requires it; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = _partitions(consumer, topic, timeout_ms / 1000)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        for message in _read(consumer, set(partitions), timeout_ms / 1000, follow=follow):
            _print(message, output)
            if follow:
                sys.stdout.flush()
    except KafkaException as error:
        raise RecordsError(f"topic {topic}: {error.args[0].str()}") from None
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str, timeout_s: float) -> list[int]:
    found = consumer.list_topics(timeout=timeout_s).topics.get(topic)
    if found is None or found.error is not None:
        raise RecordsError(f"there is no topic {topic}")
    return list(found.partitions)


def _read(
    consumer: Consumer, unfinished: set[int], timeout_s: float, *, follow: bool
) -> Iterator[Message]:
    """Yield messages until every partition has been read to its end; ``follow``: without end."""
    heard_at = time.monotonic()
    while unfinished or follow:
        message = consumer.poll(_POLL_S)
        if message is None:
            if unfinished and time.monotonic() - heard_at > timeout_s:
                raise RecordsError(
                    f"no record of {counted(len(unfinished), 'partition')} came within"
                    f" {timeout_s:g} s; the first is partition {min(unfinished)}"
                )
            continue
        heard_at = time.monotonic()
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            unfinished.discard(message.partition())
        elif not error.retriable():
            raise KafkaException(error)


def _print(message: Message, output: str) -> None:
    key, value = _text(message.key()), _text(message.value())
    if output == Output.JSON:
        fields = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": message.timestamp()[1],
            "key": key,
            "value": value,
        }
        click.echo(orjson.dumps(fields))
        return
    named = "" if key is None else f"{key} = "
    place = f"{message.topic()}-{message.partition()} @{message.offset()}"
    click.echo(f"{place}  {named}{'null' if value is None else value}")


def _text(data: bytes | str | None) -> str | None:
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else data


def _bootstrap(cluster: Cluster) -> str:
    """Return the bootstrap servers for a Kafka client: all registered brokers."""
    with cluster.admin() as admin:
        registrations = admin.read_brokers().values()
    infos = [r.info for r in registrations if not isinstance(r, BadDataError)]
    endpoints = [info.plaintext_endpoint for info in infos if info.plaintext_endpoint is not None]
    if not endpoints:
        raise RecordsError("no broker is registered")
    return ",".join(f"{bracketed(e.host)}:{e.port}" for e in endpoints)
