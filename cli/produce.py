"""``produce``: writes lines as records, with librdkafka."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from regent.cli.kafka_client import KafkaClientError, tell_throttling
from regent.cli.output import examples
from regent.cli.record_lines import Headers, LineRecord, is_timestamp, json_records, text_records
from regent.cli.topic_options import refuse_empty
from regent.cli.waiting import MAX_INT32, Explained, Progress, timeout_option
from regent.cli.watching import complete_topics
from regent.client.cluster_connection import Cluster, client_settings, open_client, pass_cluster
from regent.client.obstacles import record_obstacles
from regent.client.wording import counted
from regent.config.moments import parse_timestamp

_POLL_S: Final = 0.2
_PATIENCE_S: Final = 2.0  # without an acknowledgement, until the command says what it waits for
_RECORDS_A_LOOK: Final = 1_000  # at the progress
_ANY_PARTITION: Final = -1


def _parse_headers(_context: object, _option: object, texts: Sequence[str]) -> Headers:
    headers = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        headers.append((key, value.encode()))
    return headers


def _parse_timestamp(_context: object, _option: object, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        timestamp_ms = parse_timestamp(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}, or milliseconds since 1970") from None
    if not is_timestamp(timestamp_ms):
        raise click.BadParameter(f"{text!r} is not after 1970")
    return timestamp_ms


@click.command(
    epilog=examples(
        "produce payments --key-separator : < lines.txt",
        "produce payments --file lines.txt --partition 2 --header source=batch",
        "consume payments -o json | regent produce copy -i json",
    )
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--file", type=click.File("rb"), default="-", metavar="FILE", help="Read this file.")
@click.option(
    "-i",
    "--input",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text: a line is a value. json: a line is a record, as `consume -o json` writes it.",
)
@click.option("--key", metavar="TEXT", help="Key of all records.")
@click.option("--key-separator", metavar="TEXT", help="Separator of key and value in a line.")
@click.option(
    "--partition",
    type=click.IntRange(0, MAX_INT32),
    help="Partition of all records.  [default: by key]",
)
@click.option(
    "--timestamp",
    "timestamp_ms",
    metavar="TIME",
    callback=_parse_timestamp,
    help="Timestamp of all records: a time in UTC, 2026-01-31T23:59:00, or milliseconds since"
    " 1970.",
)
@click.option(
    "--header",
    "headers",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_parse_headers,
    help="A header of all records; the option can be repeated.",
)
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
    cluster: Cluster, /, topic: str, file: BinaryIO, acks: str, timeout_ms: int, **options: Any
) -> None:
    """Write each line of the standard input as a record, and wait until all are acknowledged.

    With --acks all each record is written once, even if brokers fail. A JSON line has "value", and
    may have "key", "headers" and "timestamp_ms"; its topic, partition and offset are ignored.
    """
    refuse_empty(topic)
    records = _records(file, **options)
    producer = open_client(
        Producer,
        {
            **client_settings(cluster),
            "throttle_cb": tell_throttling(),
            "error_cb": lambda _: None,  # without one, a fatal error ends poll() with another one
            "acks": acks,
            "enable.idempotence": acks == "all",
            "message.timeout.ms": max(timeout_ms, 1),
        },
    )
    partition: int | None = options["partition"]
    chosen = _ANY_PARTITION if partition is None else partition
    obstacles = Explained(
        f"topic {topic}: no record is acknowledged yet (a record fails after"
        f" {timeout_ms / 1000:g} s, --timeout-ms)",
        lambda: _obstacles(cluster, topic, in_sync=acks == "all"),
        first_s=_PATIENCE_S,
        every_s=_PATIENCE_S,
    )
    deliveries = _Deliveries(producer, topic, chosen, obstacles)
    size = _size(file)
    with Progress("writing", size, "bytes") as progress:
        try:
            for record in records:
                deliveries.send(record)
                if size and deliveries.total % _RECORDS_A_LOOK == 0:
                    progress.remain(size - file.tell())
        finally:  # send what was read, even after Ctrl-C
            deliveries.await_all()
    if deliveries.failure is not None:
        raise KafkaClientError(
            f"topic {topic}: {deliveries.failed} of {counted(deliveries.total, 'record')} not"
            f" acknowledged: {_reason(deliveries.failure, obstacles)}"
        )
    click.echo(f"Wrote {counted(deliveries.total, 'record')} to {topic}.")


def _records(
    file: BinaryIO,
    form: str,
    key: str | None,
    key_separator: str | None,
    headers: Headers,
    timestamp_ms: int | None,
    **_: object,
) -> Iterator[LineRecord]:
    """Yield the records of a file, with what the options say of all records."""
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator do not go together")
    if form == "json" and key_separator is not None:
        raise click.UsageError("--key-separator goes with -i text only")

    def complete(record: LineRecord) -> LineRecord:
        return LineRecord(
            record.key if key is None else key.encode(),
            record.value,
            [*record.headers, *headers],
            record.timestamp_ms if timestamp_ms is None else timestamp_ms,
        )

    return map(
        complete, json_records(file) if form == "json" else text_records(file, key_separator)
    )


def _size(file: BinaryIO) -> int:
    """Return how many bytes a file still has; 0 when that is not known."""
    try:
        status = os.fstat(file.fileno())
        return status.st_size - file.tell() if stat.S_ISREG(status.st_mode) else 0
    except OSError:  # a stream in memory
        return 0


class _Deliveries:
    """Sends records, and counts acknowledgements and failures."""

    def __init__(
        self, producer: Producer, topic: str, partition: int, obstacles: Explained
    ) -> None:
        self.total = 0
        self.failed = 0
        self.failure: KafkaError | None = None
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._obstacles = obstacles

    def send(self, record: LineRecord) -> None:
        """Send a record once fewer than 100,000 wait for acknowledgement."""
        self.total += 1
        if not len(self._producer):
            self._obstacles.heard()
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    self._partition,
                    on_delivery=self._on_delivery,
                    timestamp=record.timestamp_ms or 0,
                    headers=list(record.headers),
                )
            except BufferError:
                self._producer.poll(_POLL_S)
                self._obstacles.check()
            except KafkaException as error:
                raise KafkaClientError(f"record {self.total}: {error.args[0].str()}") from None
            else:
                self._producer.poll(0)
                return

    def await_all(self) -> None:
        """Wait until every record is acknowledged or has failed."""
        while self._producer.flush(_POLL_S):
            self._obstacles.check()

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        self._obstacles.heard()
        if error is not None:
            self.failed += 1
            self.failure = error if self.failure is None else self.failure


def _reason(error: KafkaError, obstacles: Explained) -> str:
    """Return why a record was not acknowledged; a refusal that librdkafka retries is a timeout."""
    is_late = error.code() == KafkaError._MSG_TIMED_OUT
    return f"{error.str()}{obstacles.because() if is_late else ''}"


def _obstacles(cluster: Cluster, topic: str, *, in_sync: bool) -> Sequence[str]:
    with cluster.admin() as admin:
        found = record_obstacles(admin, topic, in_sync=in_sync)
    return found or ["every partition has a leader, which has not answered"]
