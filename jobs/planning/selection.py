"""Spark's part of planning: counting the loads of brokers, and loading what may move."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from regent.core.model import BrokerId
from regent.core.quantities import bytes_text
from regent.jobs.assignment_source import AssignmentSource, check_assignment, held_by_broker
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.command import InputError
from regent.jobs.planning.model import NO_RACK, UNLIMITED, VACANT, Brokers, Ints, Layout
from regent.jobs.planning.partition_sizes import Sizes

_BY_PARTITION = ["topic", "partition"]
_BYTES_OF_REPLICA: Final = 32
_BYTES_OF_NEW: Final = 100  # for a replica more: where it goes is chosen one by one
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def check_memory(replicas: int) -> None:
    """Raise ``InputError`` for an assignment that is too large for the driver, before it is loaded.

    A replica takes 12 bytes: before and after the plan, and on its way from Spark. What its
    partition takes, with its topic, is counted as 20 more.
    """
    available = _memory()
    if replicas * _BYTES_OF_REPLICA > available:
        raise InputError(
            f"a plan needs {_BYTES_OF_REPLICA} bytes of memory a replica on the driver:"
            f" {replicas:,} replicas do not fit into {available / 2**30:.1f} GiB; at most"
            f" {available // _BYTES_OF_REPLICA:,} do: use a machine with more memory"
        )


def _check_width(table: pyarrow.Table, lengths: Ints, factor: int) -> int:
    """Return how many replicas each row has room for: as many as the widest has, or is to get.

    Raises ``InputError`` if all that room does not fit into the memory of the driver.
    """
    widest, available = int(lengths.argmax()), _memory()
    width = max(int(lengths[widest]), factor)
    added = int((factor - lengths).clip(0).sum())
    needed = len(table) * width * _BYTES_OF_REPLICA + added * _BYTES_OF_NEW
    if needed > available:
        why = ""
        if width > factor:
            topic, number = (table[name][widest].as_py() for name in _BY_PARTITION)
            why = f" ({topic}-{number} has {width}: leave its topic out with --exclude)"
        raise InputError(
            f"{len(table):,} partitions with room for {width} replicas each need"
            f" {bytes_text(needed)} of memory on the driver, which has {bytes_text(available)}{why}"
        )
    return width


def _memory() -> int:
    """Return the bytes of memory of this machine, or of the container if it has fewer."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no limit is the word "max"
        memory = min(memory, int(_CGROUP_LIMIT.read_text()))
    return memory


def load_layout(
    frame: DataFrame,
    where: str,
    can_move: Column,
    brokers: Brokers,
    sizes: Sizes | None,
    factor: int,
) -> Layout:
    """Load the partitions that may move.

    A partition that is missing in ``sizes`` has size 0. Raises ``InputError`` when there are none,
    or when they do not fit into memory with at least ``factor`` replicas each.
    """
    table = frame.filter(can_move).select(*_BY_PARTITION, "replicas").toArrow().combine_chunks()
    if not len(table):
        raise InputError(f"{where}: --topics and --exclude leave no topic")
    table = table.sort_by([(name, "ascending") for name in _BY_PARTITION])
    column = table["replicas"].combine_chunks()
    lengths = column.value_lengths().to_numpy()
    width = _check_width(table, lengths, factor)
    replicas = np.full((len(table), width), VACANT, np.int32)
    ids = np.array(brokers.ids)
    order = np.argsort(ids)
    indexes = order[np.searchsorted(ids, column.flatten().to_numpy(), sorter=order)]
    replicas[np.arange(replicas.shape[1]) < lengths[:, None]] = indexes
    numbers = table["partition"].to_numpy()
    bytes_of_row = np.zeros(len(table), np.int64)
    if sizes is not None:
        rows = pyarrow.array(np.arange(len(table)))
        numbered = table.select(_BY_PARTITION).append_column("row", rows)
        found = numbered.join(sizes.table, _BY_PARTITION).sort_by("row")["bytes"]
        bytes_of_row = found.fill_null(0).to_numpy()
    return Layout(brokers, table["topic"], numbers, replicas, bytes_of_row)


def topic_condition(wanted: Sequence[str], excluded: Sequence[str]) -> Column:
    """Return the condition that a topic matches one of ``wanted`` and none of ``excluded``."""
    condition = F.lit(True)
    if wanted:
        condition = F.col("topic").rlike(_regex(wanted))
    return condition & ~F.col("topic").rlike(_regex(excluded)) if excluded else condition


def is_chosen(topic: str, wanted: Sequence[str], excluded: Sequence[str]) -> bool:
    """Return whether ``topic_condition`` holds for a topic."""
    is_wanted = not wanted or re.match(_regex(wanted), topic) is not None
    return is_wanted and not (excluded and re.match(_regex(excluded), topic))


def broker_loads(
    frame: DataFrame,
    source: AssignmentSource,
    listed: Sequence[PlannedBroker],
    *,
    is_rack_aware: bool,
) -> Brokers:
    """Count the loads of brokers; those that are not listed count as dead.

    With ``is_rack_aware`` each broker that takes replicas has a rack.
    Raises ``InputError`` and ``ReassignmentInProgressError``: see ``check_assignment``.
    """
    check_assignment(frame, source, refuse_moving=True)
    loads = held_by_broker(frame)
    listed = sorted(listed, key=lambda broker: (broker.no_replicas, broker.broker_id))
    live = [broker.broker_id for broker in listed]
    ids = live + sorted(loads.keys() - set(live))
    held = [loads.get(broker_id, (0, 0)) for broker_id in ids]
    dead = len(ids) - len(live)
    no_takers = sum(broker.no_replicas for broker in listed)
    capacities = [UNLIMITED if broker.capacity is None else broker.capacity for broker in listed]
    names = sorted({broker.rack for broker in listed if broker.rack is not None})
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    racks = [numbers.get(b.rack, NO_RACK) if is_rack_aware else 0 for b in listed]
    return Brokers(
        ids,
        len(live) - no_takers,
        racks + [NO_RACK] * dead,
        capacities + [UNLIMITED] * dead,
        [replicas for replicas, _ in held],
        [leaders for _, leaders in held],
        hosts_of(listed, ids),
        no_takers,
    )


def hosts_of(listed: Sequence[PlannedBroker], ids: Sequence[BrokerId]) -> Sequence[int]:
    """Number the hosts of brokers, by the place of the first; none if no listed ones share one."""
    names = {b.broker_id: b.node_host for b in listed if b.node_host is not None}
    if len(set(names.values())) == len(names):
        return ()
    keys = [names.get(broker_id, broker_id) for broker_id in ids]
    return [keys.index(key) for key in keys]


def _regex(globs: Sequence[str]) -> str:
    """Return a regular expression for names like one of the globs (``*`` and ``?``)."""
    wild = {"*": ".*", "?": "."}
    alternatives = ("".join(wild.get(c) or re.escape(c) for c in glob) for glob in globs)
    return f"^({'|'.join(alternatives)})$"
