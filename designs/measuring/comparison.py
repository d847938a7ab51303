"""Measures several designs in the same way, each failure in a cluster of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from regent.designs.measuring.failure import FailureCase, FailureMeter, FailureResult, Progress
from regent.designs.measuring.measured_cluster import (
    Believers,
    DisturbedError,
    MeasuredCluster,
    MeasuringError,
    StateChangeCost,
)
from regent.designs.measuring.registry import MeasuredDesign
from regent.testing.janitor import Janitor

T = TypeVar("T")

_ATTEMPTS: Final = 3
_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class ComparisonSetting:
    """The size of the clusters, and how many brokers die at the same moment.

    ``growth``: more numbers of partitions, to see how the counts grow.
    """

    brokers: int
    partitions: int
    failures: int
    growth: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class DesignResult:
    """What was measured of one design; None: it cannot be measured of this one."""

    leader_change: FailureResult
    """The leader of the only partition dies."""
    failure: FailureResult
    """Brokers die, but not the controller if there is one."""
    controller_failure: FailureResult | None
    """The controller is among the brokers that die."""
    believers: Believers | None
    state_change: StateChangeCost | None
    growth: Sequence[FailureResult] = ()
    """As ``failure``, by the number of partitions."""


@dataclass(frozen=True, slots=True)
class DesignComparison:
    """The results by the names of the designs."""

    setting: ComparisonSetting
    designs: Mapping[str, DesignResult]


def compare_designs(
    designs: Mapping[str, MeasuredDesign], setting: ComparisonSetting, progress: Progress
) -> DesignComparison:
    """Measure the designs one after the other. Raises ``RegentError``; no process is left then."""
    results = {}
    for name, design in designs.items():
        measuring = _DesignMeasuring(name, design, setting.brokers, progress)
        results[name] = measuring.result(setting)
    return DesignComparison(setting, results)


class _DesignMeasuring:
    """Measures one design, each time in a new cluster."""

    def __init__(self, name: str, design: MeasuredDesign, brokers: int, progress: Progress) -> None:
        self._name = name
        self._design = design
        self._brokers = brokers
        self._progress = progress

    def result(self, setting: ComparisonSetting) -> DesignResult:
        change = FailureCase(1)
        failure = FailureCase(setting.partitions, setting.failures)
        growth = [FailureCase(count, setting.failures) for count in setting.growth]
        measured = {case: self._failure(case) for case in dict.fromkeys((change, failure, *growth))}
        of_controller = replace(failure, includes_controller=True)
        return DesignResult(
            leader_change=measured[change],
            failure=measured[failure],
            controller_failure=self._failure(of_controller)
            if self._design.has_controller
            else None,
            believers=self._in_cluster("stops a leader", lambda cluster: cluster.believers()),
            state_change=self._in_cluster(
                "changes one state", lambda cluster: cluster.state_change_cost()
            ),
            growth=[measured[case] for case in growth],
        )

    def _failure(self, case: FailureCase) -> FailureResult:
        for _ in range(_ATTEMPTS - 1):
            with suppress(DisturbedError):
                return self._failure_of_one(case)
        return self._failure_of_one(case)

    def _failure_of_one(self, case: FailureCase) -> FailureResult:
        with self._cluster() as cluster:
            return FailureMeter(cluster).measure(case, self._say)

    def _in_cluster(self, doing: str, measure: Callable[[MeasuredCluster], T]) -> T:
        """Measure something of a cluster with one partition."""
        with self._cluster() as cluster:
            cluster.create_partitions(1)
            FailureMeter(cluster).await_rest()
            self._say(doing)
            return measure(cluster)

    @contextmanager
    def _cluster(self) -> Iterator[MeasuredCluster]:
        """Start a cluster for the block; nothing is left, even if this process is killed in it.

        Its data are in memory if possible: designs are compared, not disks.
        """
        self._say(f"starts {self._brokers} brokers")
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix="regent-designs-", dir=memory))
        janitor = Janitor(folder)
        try:
            with closing(self._design.start(folder, self._brokers)) as cluster:
                yield cluster
        except AssertionError as error:  # of RegentCluster
            raise MeasuringError(f"{self._name}: {error}") from error
        finally:
            self._say("ends")
            janitor.clean_up()

    def _say(self, doing: str) -> None:
        self._progress(f"{self._name} {doing}")
