"""Metrics as tables, and as text for Prometheus (version 0.0.4 of its format).

A metric is one row: its name, its meaning, and how it is read. ``docs/metrics.md`` is generated
from the tables (``reference``). prometheus_client takes a second for the metrics of ten thousand
partitions, this a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from regent.broker.metrics.recent import Recent
from regent.core.errors import StorageError

S = TypeVar("S")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Kind(StrEnum):
    """What ``Metric.read`` returns, and what is shown of it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"  # Durations: quantiles of the last minute, count and sum since the start
    RATE = "rate"  # a counter: what it grew by in a second, in the last minute
    SHARE = "share"  # the same of a sum of seconds; at most 1


_TYPES: Final = {Kind.RATE: "gauge", Kind.SHARE: "gauge"}
"""The types of Prometheus that are not named as the kind."""


class Family:
    """All samples of one name. ``kind``: ``gauge``, ``counter`` or ``summary``.

    ``samples`` has the text that follows the name, with the value. It is not kept as tuples: the
    garbage collector would look at each of them.
    """

    __slots__ = ("kind", "meaning", "name", "samples")

    def __init__(self, kind: str, name: str, meaning: str) -> None:
        self.kind = kind
        self.name = name
        self.meaning = meaning
        self.samples: list[str] = []

    def add(self, value: float, labels: str = "", suffix: str = "") -> Self:
        """Add a sample; ``labels`` as ``label_text`` returns them."""
        self.samples.append(f"{suffix}{labels} {value}")
        return self

    def values(self) -> dict[str, float]:
        """Return the samples by their names and labels."""
        parts = (sample.rpartition(" ") for sample in self.samples)
        return {self.name + rest: float(value) for rest, _, value in parts}

    def text(self) -> str:
        """Return the lines of all samples."""
        head = f"# HELP {self.name} {self.meaning}\n# TYPE {self.name} {self.kind}\n"
        samples = f"\n{self.name}".join(self.samples)
        return f"{head}{self.name}{samples}\n" if self.samples else head


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One row. ``name`` is Kafka's; ``read`` returns the value of a thing that is measured.

    ``details`` follow the meaning in docs/metrics.md. If ``read`` raises ``StorageError``, there is
    no sample.
    """

    kind: Kind
    name: str
    meaning: str
    read: Callable[[S], Any]
    details: str


class _Rows:
    """Makes the rows of one kind.

    ``read`` may be a path of attributes; without it the thing is the value.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def __call__(
        self,
        name: str,
        meaning: str,
        read: Callable[[S], Any] | str | None = None,
        details: str = "",
    ) -> Metric[S]:
        if read is None:
            read = _itself
        elif isinstance(read, str):
            read = attrgetter(read)
        return Metric(self._kind, name, meaning, read, details)


gauge: Final = _Rows(Kind.GAUGE)
counter: Final = _Rows(Kind.COUNTER)
summary: Final = _Rows(Kind.SUMMARY)
rate: Final = _Rows(Kind.RATE)
share: Final = _Rows(Kind.SHARE)


class MetricTable(Generic[S]):
    """The metrics of one kind of thing, all with the same labels.

    ``mbean`` is Kafka's: up to the name of the metric, such as ``kafka.log:type=Log,name=``, or all
    of it if the metrics are its attributes. Without it the names are those of Prometheus.
    """

    def __init__(self, mbean: str, *rows: Metric[S], labels: Sequence[str] = ()) -> None:
        self.mbean = mbean
        self.rows = rows
        self.labels = labels

    def exposed_name(self, row: Metric[S]) -> str:
        """Return the name for Prometheus: what the rules of the JMX exporter make of the MBean."""
        domain, _, rest = self.mbean.partition(":type=")
        kind = rest.partition(",")[0].replace("socket-server-", "socketserver")
        parts = (domain, kind, row.name) if self.mbean else (row.name,)
        return "_".join(parts).replace(".", "_").replace("-", "_").lower()

    def families(
        self, things: Iterable[tuple[Sequence[str], S]], recent: Recent
    ) -> Sequence[Family]:
        """Read the metrics of ``things``, each of which comes with the values of its labels."""
        families = [
            Family(_TYPES.get(row.kind, row.kind.value), self.exposed_name(row), row.meaning)
            for row in self.rows
        ]
        for values, thing in things:
            labels = label_text(zip(self.labels, values, strict=False))
            for row, family in zip(self.rows, families, strict=True):
                with suppress(StorageError):
                    _add(family, row.kind, row.read(thing), labels, recent)
        return families

    def of(self, thing: S, recent: Recent, *values: str) -> Sequence[Family]:
        """Read the metrics of one thing, with the values of its labels."""
        return self.families([(values, thing)], recent)


class MetricSource(Protocol):
    """A part of a broker that has metrics."""

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value; called on any thread."""
        ...


def text(families: Iterable[Family]) -> Iterator[str]:
    """Yield the text, one name after the other; families of the same name become one."""
    by_name: dict[str, Family] = {}
    for family in families:
        first = by_name.setdefault(family.name, family)
        if first is not family:
            first.samples.extend(family.samples)
    return (family.text() for family in by_name.values())


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels as they follow a name."""
    pairs = ",".join([f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels])
    return f"{{{pairs}}}" if pairs else ""


def _add(family: Family, kind: Kind, value: Any, labels: str, recent: Recent) -> None:
    match kind:
        case Kind.GAUGE | Kind.COUNTER:
            family.add(+value, labels)  # a bool is shown as 0 or 1
        case Kind.RATE:
            family.add(recent.rate(family.name + labels, value), labels)
        case Kind.SHARE:
            family.add(min(1.0, recent.rate(family.name + labels, value)), labels)
        case Kind.SUMMARY:
            recent.add_summary(family, value, labels)


def _itself(thing: S) -> S:
    return thing
