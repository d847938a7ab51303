"""``consume``: prints records, with librdkafka."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import click
import orjson
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from regent.cli.kafka_client import KafkaClientError, tell_throttling
from regent.cli.output import Output, examples, note, output_option, quoted
from regent.cli.record_lines import (
    Headers,
    LineRecord,
    printable,
    printable_json,
    record_fields,
    record_text,
)
from regent.cli.topic_options import refuse_empty
from regent.cli.waiting import MAX_INT32, Explained, timeout_option
from regent.cli.watching import complete_groups, complete_topics
from regent.client.cluster_connection import Cluster, client_settings, open_client, pass_cluster
from regent.client.obstacles import record_obstacles
from regent.client.wording import counted, listed
from regent.config.moments import parse_timestamp

_POLL_S: Final = 0.2
_PATIENCE_S: Final = 4.0  # a new group waits 3 s for more members
_EARLIEST, _LATEST = "earliest", "latest"
_NO_GROUP: Final = "regent-cli"  # librdkafka requires a name; nothing is committed


def _check_offset(_context: object, _option: object, text: str | None) -> str | None:
    if text is None or text in (_EARLIEST, _LATEST) or re.fullmatch(r"-?\d{1,18}", text):
        return text
    raise click.BadParameter(f"{text!r} is not a number, {_EARLIEST} or {_LATEST}")


def _parse_timestamp(_context: object, _option: object, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_timestamp(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}, or milliseconds since 1970") from None


@click.command(
    epilog=examples(
        "consume payments",
        "consume payments --follow -o json",
        "consume payments --partition 0 --offset -10",
        "consume payments --group billing --max-messages 100",
    )
)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--follow", "-f", is_flag=True, help="Print new records as they come, until Ctrl-C.")
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=complete_groups,
    help="Read as a member of this group, and commit what was printed.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0, MAX_INT32),
    multiple=True,
    help="Read this partition; the option can be repeated.  [default: all]",
)
@click.option("--from-beginning", is_flag=True, help="The same as --offset earliest.")
@click.option(
    "--offset",
    metavar="OFFSET",
    callback=_check_offset,
    help="Begin at this offset, -N: N before the end, earliest, or latest. A group begins at its"
    " committed offset, without one here.  [default: earliest]",
)
@click.option(
    "--from-timestamp",
    "from_ms",
    metavar="TIME",
    callback=_parse_timestamp,
    help="Begin with records of a time in UTC, 2026-01-31T23:59:00, 10m ago, or milliseconds since"
    " 1970.",
)
@click.option(
    "--max-messages", type=click.IntRange(min=1), metavar="N", help="End after N records."
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether to print records of transactions that are open or were aborted.",
)
@click.option("--timestamps", "with_timestamp", is_flag=True, help="Print timestamps, in UTC.")
@click.option("--headers", "with_headers", is_flag=True, help="Print headers.")
@timeout_option("Time to wait for the next record, until the end of every partition is reached.")
@output_option
@pass_cluster
def consume(
    cluster: Cluster,
    /,
    topic: str,
    follow: bool,
    group: str | None,
    timeout_ms: int,
    **options: Any,
) -> None:
    """Print the records of a topic, to the end of each partition.

    JSON always has timestamps and headers. On a terminal, characters that would control it are
    escaped; a pipe gets the bytes of the records.
    """
    refuse_empty(topic)
    start = _start(group, **options)
    shown = _printer(**options)
    consumer = open_client(Consumer, _settings(cluster, group, start, options["isolation_level"]))
    obstacles = Explained(
        f"topic {topic}: no record comes",
        lambda: _obstacles(cluster, topic, group),
        first_s=_PATIENCE_S,
    )
    reading = _Reading(consumer, topic, timeout_ms / 1000, obstacles, follow=follow)
    try:
        if group is None:
            reading.assign(options["partitions"], start)
        else:
            reading.join(group)
        for message in reading.messages(options["max_messages"]):
            click.echo(shown(message))
            if group is not None:
                consumer.store_offsets(message)
        if group is not None:
            _commit(consumer)
    except KafkaException as error:
        raise KafkaClientError(f"topic {topic}: {error.args[0].str()}") from None
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        consumer.close()  # commits what was printed


def _settings(
    cluster: Cluster, group: str | None, start: _Start, isolation_level: str
) -> dict[str, Any]:
    return {
        **client_settings(cluster),
        "throttle_cb": tell_throttling(),
        "group.id": group or _NO_GROUP,
        "enable.auto.commit": group is not None,
        "enable.auto.offset.store": False,  # but after a record was printed
        "enable.partition.eof": True,
        "auto.offset.reset": _LATEST if start.offset == _LATEST else _EARLIEST,
        "isolation.level": isolation_level,
    }


class _Start(NamedTuple):
    """Where reading begins: at an offset, or with the records of a time."""

    offset: str
    from_ms: int | None


def _start(
    group: str | None,
    partitions: Sequence[int],
    offset: str | None,
    from_ms: int | None,
    *,
    from_beginning: bool,
    **_: object,
) -> _Start:
    given = [from_beginning, offset is not None, from_ms is not None]
    if given.count(True) > 1:
        raise click.UsageError("only one of --from-beginning, --offset and --from-timestamp goes")
    is_place = offset not in (None, _EARLIEST, _LATEST)
    if group is not None and (partitions or is_place or from_ms is not None):
        raise click.UsageError(
            "--group goes without --partition, --from-timestamp and a number of --offset: the group"
            " has its partitions and offsets (see groups reset-offsets)"
        )
    return _Start(offset or _EARLIEST, from_ms)


class _Reading:
    """Reads the records of one topic; ``follow``: without end."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        timeout_s: float,
        obstacles: Explained,
        *,
        follow: bool,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._timeout_s = timeout_s
        self._obstacles = obstacles
        self._follow = follow
        self._unfinished: set[int] | None = None
        """The partitions that are not read to their ends; None before they are assigned."""
        self._told_open: set[int] = set()

    def assign(self, wanted: Sequence[int], start: _Start) -> None:
        """Read these partitions, or all."""
        known = self._known_partitions()
        unknown = sorted(set(wanted) - set(known))
        if unknown:
            raise KafkaClientError(
                f"topic {self._topic} has no partition {listed(unknown)}: it has"
                f" {counted(len(known), 'partition')}"
            )
        partitions = [TopicPartition(self._topic, number) for number in wanted or known]
        self._unfinished = {partition.partition for partition in partitions}
        self._consumer.assign(self._positions(partitions, start))

    def join(self, group: str) -> None:
        """Read the partitions that the group gives this member."""
        self._known_partitions()

        def on_assign(_: Consumer, given: Sequence[TopicPartition]) -> None:
            if not given:
                note(f"regent: other members of group {quoted(group)} read every partition")
            self._unfinished = {partition.partition for partition in given}

        self._consumer.subscribe([self._topic], on_assign=on_assign)

    def _known_partitions(self) -> list[int]:
        listed_topics = self._consumer.list_topics(self._topic, timeout=self._timeout_s).topics
        found = listed_topics[self._topic]
        if found.error is None:
            return sorted(found.partitions)
        if found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise KafkaClientError(f"there is no topic {self._topic}, or you may not see it")
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaClientError(f"there is no topic {self._topic}")
        raise KafkaException(found.error)

    def _positions(self, partitions: list[TopicPartition], start: _Start) -> list[TopicPartition]:
        if start.from_ms is not None:
            for partition in partitions:
                partition.offset = start.from_ms
            found = self._consumer.offsets_for_times(partitions, self._timeout_s)
            for partition in found:  # without such a record: -1, which is the end
                if partition.error is not None:
                    raise KafkaException(partition.error)
            return found
        for partition in partitions:
            partition.offset = self._position(partition, start.offset)
        return partitions

    def _position(self, topic_partition: TopicPartition, offset: str) -> int:
        """Return an offset as librdkafka has it, at least the first of the log, at most its end."""
        if offset == _EARLIEST:
            return OFFSET_BEGINNING
        if offset == _LATEST:
            return OFFSET_END
        first, end = self._consumer.get_watermark_offsets(topic_partition, self._timeout_s)
        wanted = int(offset) + (end if offset.startswith("-") else 0)
        return int(min(max(wanted, first), end))

    def messages(self, limit: int | None) -> Iterator[Message]:
        """Yield messages until every partition has been read to its end."""
        heard_at = time.monotonic()
        count = 0
        while self._follow or self._unfinished is None or self._unfinished:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                self._check_silence(time.monotonic() - heard_at)
                continue
            heard_at = time.monotonic()
            self._obstacles.heard()
            error = message.error()
            if error is None:
                yield message
                count += 1
                if count == limit:
                    return
            elif error.code() == KafkaError._PARTITION_EOF:
                self._unfinished = (self._unfinished or set()) - {message.partition()}
                self._tell_open_transaction(message)
            elif not error.retriable():
                raise KafkaException(error)

    def _check_silence(self, silent_s: float) -> None:
        is_at_end = self._unfinished is not None and not self._unfinished
        if not is_at_end:  # who follows waits for new records there
            self._obstacles.check()
        if silent_s <= self._timeout_s or is_at_end:
            return
        if self._unfinished is None:
            raise KafkaClientError(
                f"the group gave no partition within {self._timeout_s:g} s"
                f"{self._obstacles.because()}"
            )
        raise KafkaClientError(
            f"no record of {counted(len(self._unfinished), 'partition')} came within"
            f" {self._timeout_s:g} s; the first is partition {min(self._unfinished)}"
            f"{self._obstacles.because()}"
        )

    def _tell_open_transaction(self, end: Message) -> None:
        """Say that a partition was read to an open transaction only, and not to its end."""
        number, offset = end.partition(), end.offset()
        if number is None or offset is None or number in self._told_open:
            return
        topic_partition = TopicPartition(self._topic, number)
        _, high_watermark = self._consumer.get_watermark_offsets(topic_partition, cached=True)
        if high_watermark > offset and self._ends_at(topic_partition, offset):
            self._told_open.add(number)
            note(
                f"regent: partition {number}: a transaction is open since offset {offset}; it hides"
                f" what follows, up to offset {high_watermark - 1} (--isolation-level"
                " read_uncommitted shows it)"
            )

    def _ends_at(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Whether the records that may be read end there now, also if others follow.

        Else new ones have come since this offset was the end. That is not known without an answer.
        """
        with suppress(KafkaException):
            return bool(
                self._consumer.get_watermark_offsets(topic_partition, self._timeout_s)[1] == offset
            )
        return False


def _obstacles(cluster: Cluster, topic: str, group: str | None) -> Sequence[str]:
    with cluster.admin() as admin:
        return record_obstacles(admin, topic, group=group)


def _commit(consumer: Consumer) -> None:
    """Commit what was printed; raises ``KafkaException`` if that is refused."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._NO_OFFSET:
            raise


def _printer(
    output: str, *, with_timestamp: bool, with_headers: bool, **_: object
) -> Callable[[Message], bytes]:
    """Return what makes a line of a message."""
    is_terminal = sys.stdout.isatty()

    def as_json(message: Message) -> bytes:
        place = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
        }
        line = orjson.dumps({**place, **record_fields(_record(message))})
        return printable_json(line) if is_terminal else line

    def as_text(message: Message) -> bytes:
        place = f"{message.topic()}-{message.partition()} @{message.offset()}  ".encode()
        text = record_text(
            _record(message), with_timestamp=with_timestamp, with_headers=with_headers
        )
        return place + (printable(text) if is_terminal else text)

    return as_json if output == Output.JSON else as_text


def _record(message: Message) -> LineRecord:
    kind, timestamp_ms = message.timestamp()
    return LineRecord(
        message.key(),
        message.value(),
        cast("Headers", message.headers() or ()),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )
