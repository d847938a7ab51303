"""What some lines of a journal add to the report of events: small tables, made where they are read.

Tables of the same name are put together and grouped again, so the sum over any number of journals
is as small. A percentile needs the values themselves: they are counted by their first four digits,
in whole microseconds, with the highest value of each count. So a percentile is the highest of the
values with the same four digits, at most a thousandth too high, and a maximum is exact. A
distribution has at most 10,000 counts below 10 ms, and 9,000 for each further power of ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Parts: TypeAlias = dict[str, pa.Table]

_MINUTE_MS: Final = 60_000
_MAX_BUCKETS: Final = 120
_LEAST_BUCKET_MS: Final = 100
_DIGITS: Final = 4


class _Grouping(NamedTuple):
    keys: tuple[str, ...]
    sums: tuple[str, ...] = ()
    least: tuple[str, ...] = ()
    most: tuple[str, ...] = ()


def _values(of: str, duration: str) -> _Grouping:
    """Count values of a duration, by their first digits."""
    return _Grouping((of, f"{duration}_us"), ("events",), most=(f"{duration}_ms",))


_IN_TIME: Final = ("events", "change_count", "handling_ms")
_GROUPINGS: Final = {
    "groups": _Grouping(
        ("broker_id", "controller_epoch", "event", "broker"),
        ("events", "change_count", "named_changes"),
        ("ts_ms", "arrived_ms"),
        ("last_ms", "handled_ms"),
    ),
    "handling": _values("event", "handling"),
    "queueing": _values("event", "queue"),
    "answers": _values("broker", "answered"),
    "waits": _values("bucket_ms", "queue"),
    "buckets": _Grouping(("bucket_ms",), _IN_TIME),
    "minutes": _Grouping(("minute_ms",), _IN_TIME, most=("longest_wait_ms",)),
    "comings": _Grouping(("controller_epoch", "broker", "did"), ("events",), ("ts_ms",)),
    "partitions": _Grouping(
        ("topic", "partition", "isr_before", "isr"),
        ("events", "leader_changes", "times_leaderless"),
        ("first_epoch",),
        ("last_epoch",),
    ),
}
_OF_EVENT: Final = (
    *("ts_ms", "broker_id", "controller_epoch", "event", "cause", "queue_ms", "handling_ms"),
    "change_count",
)


def bucket_of(starts: pa.ChunkedArray) -> int:
    """Return the length of the buckets of time, in ms; longer ones are multiples of shorter."""
    times = pc.min_max(starts).as_py()
    bucket_ms = _LEAST_BUCKET_MS
    while times["max"] // bucket_ms - times["min"] // bucket_ms >= _MAX_BUCKETS:
        bucket_ms *= 2
    return bucket_ms


def parts_of(events: pa.Table, top: int) -> Parts:
    """Return the tables of at least one event; ``top``: single events to keep."""
    ts_ms, handling_ms = events["ts_ms"], events["handling_ms"]
    columns = {
        "events": pa.repeat(pa.scalar(1, pa.int64()), len(events)),
        "last_ms": ts_ms,
        "handled_ms": pc.add(ts_ms, handling_ms),
        "arrived_ms": pc.subtract(ts_ms, events["queue_ms"]),
        "longest_wait_ms": events["queue_ms"],
        "bucket_ms": _floor(ts_ms, bucket_of(ts_ms)),
        "minute_ms": _floor(ts_ms, _MINUTE_MS),
        "handling_us": _first_digits(handling_ms),
        "queue_us": _first_digits(events["queue_ms"]),
    }
    for name, values in columns.items():
        events = events.append_column(name, values)
    answers = events.filter(pc.is_valid(pc.add(events["answered_ms"], events["broker"])))
    tables = dict.fromkeys(_GROUPINGS, events) | {
        "answers": answers.append_column("answered_us", _first_digits(answers["answered_ms"])),
        "comings": _comings_and_goings(events),
        "partitions": _changes_of_partitions(events),
    }
    is_of_term = pc.or_(pc.is_valid(events["elected"]), pc.is_valid(events["resigned"]))
    return {name: _grouped(tables[name], grouping) for name, grouping in _GROUPINGS.items()} | {
        "elections": events.filter(is_of_term).select(["elected", "resigned", *_OF_EVENT]),
        "slowest": _slowest(events.select(_OF_EVENT), top),
    }


def merged(parts: Sequence[Parts], top: int) -> Parts:
    """Return the tables of all ``parts`` together; some may be empty."""
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return parts[0] if parts else {}
    whole = {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}
    length_ms = bucket_of(whole["buckets"]["bucket_ms"])
    for name in ("buckets", "waits"):
        starts = _floor(whole[name]["bucket_ms"], length_ms)
        whole[name] = whole[name].drop_columns(["bucket_ms"]).append_column("bucket_ms", starts)
    for name, grouping in _GROUPINGS.items():
        whole[name] = _grouped(whole[name], grouping)
    return whole | {"slowest": _slowest(whole["slowest"], top)}


def _slowest(events: pa.Table, top: int) -> pa.Table:
    order = [("handling_ms", "descending"), ("ts_ms", "ascending"), ("broker_id", "ascending")]
    return events.take(pc.select_k_unstable(events, top, order))


def _grouped(table: pa.Table, grouping: _Grouping) -> pa.Table:
    keys, *results = grouping
    aggregates = [
        (name, how)
        for names, how in zip(results, ("sum", "min", "max"), strict=True)
        for name in names
    ]
    grouped = table.group_by(list(keys), use_threads=False).aggregate(aggregates)
    grouped = grouped.combine_chunks()  # each chunk would be sent with the memory of all
    return grouped.select([*keys, *(f"{name}_{how}" for name, how in aggregates)]).rename_columns(
        [*keys, *(name for name, _ in aggregates)]
    )


def _floor(ms: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
    return pc.multiply(pc.divide(ms, step), step)


def _first_digits(ms: pa.ChunkedArray) -> pa.Array:
    """Return whole microseconds, with zeros after the first digits."""
    us = np.rint(ms.to_numpy() * 1000).astype(np.int64)
    step = np.ones_like(us)
    while (is_longer := us // step >= 10**_DIGITS).any():
        step[is_longer] *= 10
    return pa.array(us // step * step)


def _comings_and_goings(events: pa.Table) -> pa.Table:
    """Return a row for each broker that started or failed in an event."""
    tables = []
    for did in ("started", "failed"):
        lists = events[did].combine_chunks()
        of_broker = events.select(["controller_epoch", "ts_ms", "events"])
        of_broker = of_broker.take(pc.list_parent_indices(lists))
        of_broker = of_broker.append_column("broker", pc.list_flatten(lists))
        tables.append(of_broker.append_column("did", pa.repeat(did, len(of_broker))))
    return pa.concat_tables(tables)


def _changes_of_partitions(events: pa.Table) -> pa.Table:
    """Return a row for each named change of a partition, with ISRs as texts."""
    changes = pc.list_flatten(events["partitions"].combine_chunks())
    fields = dict(zip((field.name for field in changes.type), changes.flatten(), strict=True))
    leader, before = fields["leader"], fields["leader_before"]
    has_changed = pc.fill_null(pc.not_equal(leader, before), False)
    return pa.table(
        {
            "topic": fields["topic"],
            "partition": fields["partition"],
            "isr_before": _text(fields["isr_before"]),
            "isr": _text(fields["isr"]),
            "events": pa.repeat(pa.scalar(1, pa.int64()), len(changes)),
            "leader_changes": pc.cast(has_changed, pa.int64()),
            "times_leaderless": pc.cast(pc.and_(has_changed, pc.equal(leader, -1)), pa.int64()),
            "first_epoch": fields["leader_epoch"],
            "last_epoch": fields["leader_epoch"],
        }
    )


def _text(brokers: pa.ListArray) -> pa.StringArray:
    return pc.binary_join(pc.cast(brokers, pa.list_(pa.string())), ",")
