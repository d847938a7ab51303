"""The result of a benchmark, as a table and as JSON, and the machine that it depends on."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    """What one run found: ``shape`` says what was measured, ``figures`` how it was.

    Figures may be nested; those that are not numbers are notes.
    """

    shape: Mapping[str, Any]
    figures: Mapping[str, Any]


class Spread(NamedTuple):
    """One figure over all repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of what the repetitions found."""
        return cls(statistics.median(values), min(values), max(values))

    @property
    def width(self) -> float:
        """How far the repetitions are apart."""
        return self.max - self.min


class MeasuredCase(NamedTuple):
    """What all runs found for one shape."""

    shape: Mapping[str, Any]
    figures: Mapping[str, Spread]
    notes: Mapping[str, Any]
    runs: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        figures = {name: spread._asdict() for name, spread in self.figures.items()}
        case: dict[str, Any] = {"shape": dict(self.shape), "runs": self.runs, "figures": figures}
        return {**case, "notes": dict(self.notes)} if self.notes else case

    @classmethod
    def of(cls, case: Mapping[str, Any]) -> MeasuredCase:
        """Return what ``as_dict`` wrote."""
        figures = {name: Spread(**spread) for name, spread in case["figures"].items()}
        return cls(case["shape"], figures, case.get("notes", {}), case["runs"])


@dataclass(frozen=True, slots=True)
class Result:
    """One call of a benchmark; the load average is that of the last minute, before and after."""

    benchmark: str
    options: Mapping[str, Any]
    machine: Mapping[str, Any]
    started: float
    elapsed_s: float
    load_before: float
    load_after: float
    repetitions: int
    cases: tuple[MeasuredCase, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        began = datetime.fromtimestamp(self.started, UTC)
        return {
            **{name: value for name, value in asdict(self).items() if name != "cases"},
            "started": began.isoformat(timespec="seconds"),
            "elapsed_s": round(self.elapsed_s, 1),
            "cases": [case.as_dict() for case in self.cases],
        }

    def as_json(self) -> str:
        """Return one JSON object, indented."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def as_table(self) -> str:
        """Return the figures of each case as lines of a table."""
        machine = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        lines = [
            f"{self.benchmark}: {_counted(self.repetitions, 'repetition')}",
            f"load average {self.load_before:.2f} before, {self.load_after:.2f} after; {machine}",
        ]
        for case in self.cases:
            lines += ["", *_case_lines(case)]
        return "\n".join(lines) + "\n"


def measured_cases(result: Mapping[str, Any]) -> tuple[MeasuredCase, ...]:
    """Return the cases of a result that was read from JSON."""
    return tuple(map(MeasuredCase.of, result["cases"]))


def shape_line(shape: Mapping[str, Any]) -> str:
    """Return what was measured, on one line."""
    return ", ".join(f"{name} {value}" for name, value in shape.items())


def number(value: float) -> str:
    """Return a figure with four significant digits, or all of those before the point."""
    is_whole = float(value).is_integer() or abs(value) >= 10_000
    return f"{value:,.0f}" if is_whole else f"{value:.4g}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _case_lines(case: MeasuredCase) -> list[str]:
    runs = "" if case.runs == 1 else f" ({case.runs} runs)"
    lines = [shape_line(case.shape) + runs] if case.shape else []
    with_spread = case.runs > 1
    width = max(map(len, [*case.figures, *case.notes, "median"]))
    if with_spread:
        lines.append(f"  {'':{width}}  {'median':>12}  {'min':>12}  {'max':>12}")
    for name, spread in case.figures.items():
        shown = spread if with_spread else spread[:1]
        lines.append(f"  {name:{width}}" + "".join(f"  {number(v):>12}" for v in shown))
    return lines + [f"  {name:{width}}  {value}" for name, value in case.notes.items()]


def load_average() -> float:
    """Return how many processes were ready to run in the last minute, on average."""
    return os.getloadavg()[0]


def describe_machine() -> dict[str, Any]:
    """Return what figures depend on, apart from the program."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processors": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def percentiles(times_ms: Sequence[float], **shares: float) -> dict[str, float]:
    """Return for each name the time below which this share of them is; 1: the longest."""
    ordered = sorted(times_ms)
    last = len(ordered) - 1
    return {
        name: round(ordered[min(last, int(len(ordered) * share))], 2)
        for name, share in shares.items()
    }
