"""What each journal adds to the report of events: small tables, made where the journal is read.

Tables of the same name are put together and grouped again. A percentile needs the values
themselves. They are whole microseconds: they are counted, which loses nothing and makes few rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Parts: TypeAlias = dict[str, pa.Table]

MINUTE_MS: Final = 60_000
MAX_BUCKETS: Final = 120
_LEAST_BUCKET_MS: Final = 100
_COUNT: Final = "times"
_EVENTS_OF_TERMS: Final = ("elected", "resigned", "broker_id", "ts_ms", "event", "queue_ms")
_TIMES: Final = ("first_ms", "last_ms", "handled_ms", "arrived_ms")
_SLOWEST: Final = ("ts_ms", "broker_id", "controller_epoch", "event", "cause", "queue_ms")

_KEYS: Final = {
    "groups": ("broker_id", "controller_epoch", "event", "broker"),
    "comings": ("controller_epoch", "broker", "did"),
    "handling": ("event", "handling_ms"),
    "queueing": ("event", "queue_ms"),
    "answers": ("broker", "answered_ms"),
    "buckets": ("start_ms",),
    "waits": ("start_ms", "queue_ms"),
    "minutes": ("start_ms",),
    "partitions": ("topic", "partition", "isr_before", "isr"),
}
_RESULTS: Final = {
    "times": "sum",
    "events": "sum",
    "changes": "sum",
    "named_changes": "sum",
    "handling_sum_ms": "sum",
    "leader_changes": "sum",
    "times_leaderless": "sum",
    "first_ms": "min",
    "arrived_ms": "min",
    "first_epoch": "min",
    "last_ms": "max",
    "handled_ms": "max",
    "longest_wait_ms": "max",
    "last_epoch": "max",
}


def bucket_of(first_ms: int, last_ms: int) -> int:
    """Return the length of the buckets of time, in ms; longer ones are multiples of shorter."""
    bucket_ms = _LEAST_BUCKET_MS
    while last_ms // bucket_ms - first_ms // bucket_ms >= MAX_BUCKETS:
        bucket_ms *= 2
    return bucket_ms


def parts_of(events: pa.Table, top: int) -> Parts:
    """Return the tables of one journal with at least one event; ``top``: single events to keep."""
    ts_ms = events["ts_ms"]
    times = pc.min_max(ts_ms).as_py()
    bucket_ms = bucket_of(times["min"], times["max"])
    one = pa.repeat(pa.scalar(1, pa.int64()), len(events))
    events = events.append_column("events", one).append_column(_COUNT, one)
    events = events.drop_columns(["changes"]).append_column("changes", events["change_count"])
    events = events.append_column("first_ms", ts_ms).append_column("last_ms", ts_ms)
    events = events.append_column("handled_ms", pc.add(ts_ms, events["handling_ms"]))
    events = events.append_column("arrived_ms", pc.subtract(ts_ms, events["queue_ms"]))
    events = events.append_column("handling_sum_ms", events["handling_ms"])
    events = events.append_column("longest_wait_ms", events["queue_ms"])
    by_bucket = events.append_column("start_ms", _floor(ts_ms, bucket_ms))
    by_minute = events.append_column("start_ms", _floor(ts_ms, MINUTE_MS))
    of_terms = pc.or_(pc.is_valid(events["elected"]), pc.is_valid(events["resigned"]))
    of_time = ("events", "changes", "handling_sum_ms")
    return {
        "groups": _grouped(
            events,
            _KEYS["groups"],
            ("events", "changes", "named_changes", *_TIMES),
        ),
        "elections": events.filter(of_terms).select([*_EVENTS_OF_TERMS, "handling_ms", "changes"]),
        "comings": _comings_and_goings(events),
        "handling": _grouped(events, _KEYS["handling"], (_COUNT,)),
        "queueing": _grouped(events, _KEYS["queueing"], (_COUNT,)),
        "answers": _grouped(
            events.filter(pc.is_valid(pc.add(events["answered_ms"], events["broker"]))),
            _KEYS["answers"],
            (_COUNT,),
        ),
        "buckets": _grouped(by_bucket, ("start_ms",), of_time),
        "waits": _grouped(by_bucket, _KEYS["waits"], (_COUNT,)),
        "minutes": _grouped(by_minute, ("start_ms",), (*of_time, "longest_wait_ms")),
        "slowest": slowest(events, top).select([*_SLOWEST, "handling_ms", "changes"]),
        "partitions": _partitions(events),
    }


def merged(parts: Sequence[Parts], top: int) -> Parts:
    """Return the tables of all journals together; there is at least one."""
    whole = {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}
    times = pc.min_max(whole["buckets"]["start_ms"]).as_py()
    bucket_ms = bucket_of(times["min"], times["max"])
    for name in ("buckets", "waits"):
        table = whole[name]
        starts = _floor(table["start_ms"], bucket_ms)
        whole[name] = table.set_column(table.schema.get_field_index("start_ms"), "start_ms", starts)
    for name, keys in _KEYS.items():
        results = [n for n in whole[name].column_names if n not in keys]
        whole[name] = _grouped(whole[name], keys, results)
    return whole | {"slowest": slowest(whole["slowest"], top)}


def slowest(events: pa.Table, top: int) -> pa.Table:
    """Return the events that took longest."""
    order = [("handling_ms", "descending"), ("ts_ms", "ascending"), ("broker_id", "ascending")]
    return events.take(pc.select_k_unstable(events, top, order))


def _grouped(table: pa.Table, keys: Sequence[str], results: Iterable[str]) -> pa.Table:
    aggregates = [(name, _RESULTS[name]) for name in results]
    grouped = table.group_by(list(keys), use_threads=False).aggregate(aggregates)
    return grouped.select([*keys, *(f"{name}_{how}" for name, how in aggregates)]).rename_columns(
        [*keys, *(name for name, _ in aggregates)]
    )


def _floor(ms: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
    return pc.multiply(pc.divide(ms, step), step)


def _comings_and_goings(events: pa.Table) -> pa.Table:
    """Return how often each broker started and failed in each term, and when first."""
    tables = []
    for did in ("started", "failed"):
        lists = events[did].combine_chunks()
        of_event = events.select(["controller_epoch", "first_ms", _COUNT])
        of_broker = of_event.take(pc.list_parent_indices(lists))
        of_broker = of_broker.append_column("broker", pc.list_flatten(lists))
        tables.append(of_broker.append_column("did", pa.repeat(did, len(of_broker))))
    return _grouped(pa.concat_tables(tables), _KEYS["comings"], (_COUNT, "first_ms"))


def _partitions(events: pa.Table) -> pa.Table:
    """Return the named changes of each partition, by the ISR before and after, as texts."""
    changes = pc.list_flatten(events["partitions"].combine_chunks())
    fields: Mapping[str, pa.Array] = dict(
        zip((field.name for field in changes.type), changes.flatten(), strict=True)
    )
    leader, before = fields["leader"], fields["leader_before"]
    has_changed = pc.fill_null(pc.not_equal(leader, before), False)
    table = pa.table(
        {
            "topic": fields["topic"],
            "partition": fields["partition"],
            "isr_before": _text(fields["isr_before"]),
            "isr": _text(fields["isr"]),
            _COUNT: pa.repeat(pa.scalar(1, pa.int64()), len(changes)),
            "leader_changes": pc.cast(has_changed, pa.int64()),
            "times_leaderless": pc.cast(pc.and_(has_changed, pc.equal(leader, -1)), pa.int64()),
            "first_epoch": fields["leader_epoch"],
            "last_epoch": fields["leader_epoch"],
        }
    )
    results = (_COUNT, "leader_changes", "times_leaderless", "first_epoch", "last_epoch")
    return _grouped(table, _KEYS["partitions"], results)


def _text(brokers: pa.ListArray) -> pa.StringArray:
    return pc.binary_join(pc.cast(brokers, pa.list_(pa.string())), ",")
