"""What producers and consumers saw, what every replica has, and a check that both agree.

After Jepsen's checker of queues: a ``History`` has every operation and its outcome, the ``Logs``
have the records of all replicas after all faults. ``check`` returns the violations of these
guarantees:

- an acknowledged record is at its acknowledged offset on every replica, and was read;
- a record is written once, and only if a producer sent it;
- a refused record is nowhere;
- replicas agree on every offset;
- the records of a producer are in the order it sent them;
- records that a consumer read stay at their offsets: no reads above the high watermark;
- a consumer misses nothing and sees nothing twice.

A record with an unknown outcome may be there or not. A producer whose login fails while it sends
(its password was changed) gives up the records of that connection. librdkafka goes on with another
epoch and repeats in it what was not answered before, so such a producer may write records twice.
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
    """The outcome of sending a record."""

    UNKNOWN = "unknown"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"


@dataclass(slots=True)
class Send:
    """One record of a producer; ``number`` counts its earlier records. Values are unique.

    An acknowledged record may have no offset: an idempotent producer that lost the answer to one
    batch learns from the answer to the next one that both were written.
    """

    producer: str
    number: int
    partition: TopicPartition
    value: bytes
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1

    @property
    def has_offset(self) -> bool:
        """Whether its producer knows its offset."""
        return self.offset >= 0


class Read(NamedTuple):
    """One record that a consumer read."""

    consumer: str
    partition: TopicPartition
    offset: int
    value: bytes | None


@dataclass(slots=True)
class History:
    """All operations, in the sequence of each client."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # errors that no client should ever see
    repeaters: set[str] = field(default_factory=set)  # producers whose login failed meanwhile

    def of_repeaters(self) -> set[bytes]:
        """Return the values that producers sent which may have written them twice."""
        return {send.value for send in self.sends if send.producer in self.repeaters}


class Violation(NamedTuple):
    """A broken guarantee with evidence."""

    promise: str
    what: str


def check(history: History, logs: Logs) -> list[Violation]:
    """Return all violations; values must be unique and producers idempotent."""
    return [
        *(Violation("no complaint", complaint) for complaint in history.complaints),
        *_replicas_that_differ(logs),
        *_logs_out_of_order(logs),
        *_duplicates(history, logs),
        *_strangers(history, logs),
        *_lost(history, logs),
        *_producers_out_of_order(history, logs),
        *_unstable_reads(history, logs),
        *_skips(history),
        *_unseen(history),
    ]


def summary(violations: Sequence[Violation], shown: int = 5) -> str:
    """Return the number of violations of each guarantee, with the first examples."""
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


def _duplicates(history: History, logs: Logs) -> Iterator[Violation]:
    repeated = history.of_repeaters()
    for partition, broker, records in _each_log(logs):
        offsets: dict[bytes | None, int] = {}
        for record in records:
            if record.value in repeated:
                continue
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
                yield Violation("only sent records are written", what)
            elif send.outcome is Outcome.REFUSED:
                yield Violation("refused records are not written", f"{partition}: {record}")


def _lost(history: History, logs: Logs) -> Iterator[Violation]:
    offsets = {
        (partition, broker): {record.value: record.offset for record in records}
        for partition, broker, records in _each_log(logs)
    }
    for send in _acknowledged(history):
        replicas = logs.get(send.partition, {})
        if not replicas:
            yield Violation("acknowledged records stay", f"{send}, and there is no log")
        for broker in replicas:
            found = offsets[send.partition, broker].get(send.value)
            if found is None or (found != send.offset and send.has_offset):
                what = f"{send} is at {found} on broker {broker}"
                yield Violation("acknowledged records stay", what)


def _producers_out_of_order(history: History, logs: Logs) -> Iterator[Violation]:
    numbers = {send.value: (send.producer, send.number) for send in history.sends}
    for partition, broker, records in _each_log(logs):
        last: dict[str, int] = {}
        for record in records:
            if record.value is None or record.value not in numbers:
                continue
            producer, number = numbers[record.value]
            if producer in history.repeaters:
                continue
            if number < last.get(producer, -1):
                what = f"{partition} on broker {broker}: {record} after number {last[producer]}"
                yield Violation("records of a producer are in sequence", what)
            last[producer] = number


def _unstable_reads(history: History, logs: Logs) -> Iterator[Violation]:
    by_offset = {
        partition: {r.offset: r.value for r in next(iter(replicas.values()))}
        for partition, replicas in logs.items()
    }
    for read in history.reads:
        values = by_offset.get(read.partition, {})
        if read.offset not in values:
            yield Violation("records that were read stay", f"{read}, and now there is no record")
        elif values[read.offset] != read.value:
            what = f"{read}, and now {values[read.offset]!r} is there"
            yield Violation("records that were read stay", what)


def _skips(history: History) -> Iterator[Violation]:
    positions: dict[tuple[str, TopicPartition], int] = {}
    for read in history.reads:
        before = positions.get((read.consumer, read.partition))
        if before is not None and read.offset != before + 1:
            yield Violation("consumers read in sequence", f"{read} after {before}")
        positions[read.consumer, read.partition] = read.offset


def _unseen(history: History) -> Iterator[Violation]:
    seen = {read.value for read in history.reads}
    for send in _acknowledged(history):
        if send.value not in seen:
            yield Violation("acknowledged records are read", f"no consumer read {send}")


def _acknowledged(history: History) -> Iterator[Send]:
    return (send for send in history.sends if send.outcome is Outcome.ACKNOWLEDGED)


def _each_log(logs: Logs) -> Iterator[tuple[TopicPartition, BrokerId, Sequence[Record]]]:
    for partition, replicas in logs.items():
        for broker, records in replicas.items():
            yield partition, broker, records
