"""What producers and consumers saw, what every replica has, and whether the two agree.

After Jepsen's checker of queues: a ``History`` is every operation that was begun and how it ended,
the ``Logs`` are what all replicas hold once everything is well again. ``check`` returns what is
wrong; an empty list is a cluster that kept its promises:

- an acknowledged record is where its producer was told, on every replica, and was read;
- a record is written once, and only if somebody sent it;
- a refused record is nowhere;
- replicas agree on every offset;
- the records of a producer are in the order it sent them;
- what a consumer read stays as it was: whoever reads above the high watermark is found out;
- a consumer misses nothing and sees nothing twice.

A record whose producer never learned what became of it may be there or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise, zip_longest
from typing import NamedTuple, TypeAlias

from regent.core.model import BrokerId, TopicPartition
from tests.support.record_batches import Record

Logs: TypeAlias = Mapping[TopicPartition, Mapping[BrokerId, Sequence[Record]]]


class Outcome(Enum):
    """How sending a record ended."""

    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


@dataclass(slots=True)
class Send:
    """One record of a producer; ``number`` counts what it sent before. Values are unique.

    An acknowledged record may have no offset: an idempotent producer that lost the answer to one
    batch concludes from the answer to the next that both were written.
    """

    producer: str
    number: int
    partition: TopicPartition
    value: bytes
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1

    @property
    def has_offset(self) -> bool:
        """Whether its producer was told where it is."""
        return self.offset >= 0


class Read(NamedTuple):
    """One record that came to a consumer."""

    consumer: str
    partition: TopicPartition
    offset: int
    value: bytes | None


@dataclass(slots=True)
class History:
    """All that was done, in the order in which each client did it."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # what no client should ever have to say


class Violation(NamedTuple):
    """A broken promise: which, and what shows it."""

    promise: str
    what: str


def check(history: History, logs: Logs) -> list[Violation]:
    """Return every promise that was broken; values must be unique and producers idempotent."""
    return [
        *(Violation("no complaint", complaint) for complaint in history.complaints),
        *_replicas_that_differ(logs),
        *_logs_out_of_order(logs),
        *_duplicates(logs),
        *_strangers(history, logs),
        *_lost(history, logs),
        *_producers_out_of_order(history, logs),
        *_unstable_reads(history, logs),
        *_skips(history),
        *_unseen(history),
    ]


def summary(violations: Sequence[Violation], shown: int = 5) -> str:
    """Return how often which promise was broken, and the first examples of each."""
    lines = []
    for promise in dict.fromkeys(violation.promise for violation in violations):
        broken = [violation.what for violation in violations if violation.promise == promise]
        lines += [f"{promise}: broken {len(broken)} times", *(f"  {b}" for b in broken[:shown])]
    return "\n".join(lines)


def _replicas_that_differ(logs: Logs) -> Iterator[Violation]:
    for partition, replicas in logs.items():
        (first, records), *others = sorted(replicas.items())
        for broker, other in others:
            for ours, theirs in zip_longest(records, other):
                if ours != theirs:
                    what = f"{partition}: broker {first} has {ours}, broker {broker} has {theirs}"
                    yield Violation("replicas agree", what)
                    break


def _logs_out_of_order(logs: Logs) -> Iterator[Violation]:
    for partition, broker, records in _each_log(logs):
        for before, after in pairwise(records):
            if after.offset != before.offset + 1 or after.leader_epoch < before.leader_epoch:
                what = f"{partition} on broker {broker}: {before} before {after}"
                yield Violation("offsets and epochs grow", what)


def _duplicates(logs: Logs) -> Iterator[Violation]:
    for partition, broker, records in _each_log(logs):
        offsets: dict[bytes | None, int] = {}
        for record in records:
            first = offsets.setdefault(record.value, record.offset)
            if first != record.offset:
                what = f"{partition} on broker {broker}: {record.value!r} at {first}"
                yield Violation("written once", f"{what} and {record.offset}")


def _strangers(history: History, logs: Logs) -> Iterator[Violation]:
    sent = {send.value: send for send in history.sends}
    for partition, broker, records in _each_log(logs):
        for record in records:
            send = None if record.value is None else sent.get(record.value)
            if send is None or send.partition != partition:
                what = f"{partition} on broker {broker}: {record}"
                yield Violation("only what was sent is written", what)
            elif send.outcome is Outcome.REFUSED:
                yield Violation("what is refused is not written", f"{partition}: {record}")


def _lost(history: History, logs: Logs) -> Iterator[Violation]:
    offsets = {
        (partition, broker): {record.value: record.offset for record in records}
        for partition, broker, records in _each_log(logs)
    }
    for send in _acknowledged(history):
        replicas = logs.get(send.partition, {})
        if not replicas:
            yield Violation("what is acknowledged stays", f"{send}, and there is no log")
        for broker in replicas:
            found = offsets[send.partition, broker].get(send.value)
            if found is None or (found != send.offset and send.has_offset):
                what = f"{send} is at {found} on broker {broker}"
                yield Violation("what is acknowledged stays", what)


def _producers_out_of_order(history: History, logs: Logs) -> Iterator[Violation]:
    numbers = {send.value: (send.producer, send.number) for send in history.sends}
    for partition, broker, records in _each_log(logs):
        last: dict[str, int] = {}
        for record in records:
            if record.value is None or record.value not in numbers:
                continue
            producer, number = numbers[record.value]
            if number < last.get(producer, -1):
                what = f"{partition} on broker {broker}: {record} after number {last[producer]}"
                yield Violation("a producer's order is kept", what)
            last[producer] = number


def _unstable_reads(history: History, logs: Logs) -> Iterator[Violation]:
    by_offset = {
        partition: {r.offset: r.value for r in next(iter(replicas.values()))}
        for partition, replicas in logs.items()
    }
    for read in history.reads:
        values = by_offset.get(read.partition, {})
        if read.offset not in values:
            yield Violation("what was read stays", f"{read}, and now nothing is there")
        elif values[read.offset] != read.value:
            what = f"{read}, and now {values[read.offset]!r} is there"
            yield Violation("what was read stays", what)


def _skips(history: History) -> Iterator[Violation]:
    positions: dict[tuple[str, TopicPartition], int] = {}
    for read in history.reads:
        before = positions.get((read.consumer, read.partition))
        if before is not None and read.offset != before + 1:
            yield Violation("a consumer reads one after the other", f"{read} after {before}")
        positions[read.consumer, read.partition] = read.offset


def _unseen(history: History) -> Iterator[Violation]:
    seen = {read.value for read in history.reads}
    for send in _acknowledged(history):
        if send.value not in seen:
            yield Violation("what is acknowledged is read", f"nobody read {send}")


def _acknowledged(history: History) -> Iterator[Send]:
    return (send for send in history.sends if send.outcome is Outcome.ACKNOWLEDGED)


def _each_log(logs: Logs) -> Iterator[tuple[TopicPartition, BrokerId, Sequence[Record]]]:
    for partition, replicas in logs.items():
        for broker, records in replicas.items():
            yield partition, broker, records
