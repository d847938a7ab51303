"""One failure of one cluster: what it costs, and what the cluster costs at rest before it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from regent.core.model import BrokerId
from regent.designs.measuring.four_letter_words import FourLetterWords
from regent.designs.measuring.held_processes import held
from regent.designs.measuring.measured_cluster import (
    DisturbedError,
    LeaderTimes,
    MeasuredCluster,
    MeasuringError,
)
from regent.designs.measuring.transaction_log import ZooKeeperLog
from regent.designs.measuring.zookeeper_counts import (
    ZooKeeperActivity,
    ZooKeeperCounts,
    activity,
    read_counts,
)
from regent.testing.janitor import processes_with

_STILL_S: Final = 1.0
_STILL_TIMEOUT_S: Final = 600.0
_POLL_S: Final = 0.1
_DEATH_TIMEOUT_S: Final = 20.0
_DEATH_POLL_S: Final = 0.001

Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FailureCase:
    """Which brokers of a cluster with so many partitions die at the same moment.

    The leader of partition 0 and those after it in the ring; without the controller, or with it.
    """

    partitions: int
    failures: int = 1
    includes_controller: bool = False


@dataclass(frozen=True, slots=True)
class RestLoad:
    """The load on ZooKeeper at rest."""

    watches: int
    """Watches on data and on children."""
    watched_paths: int
    """Paths with watches on data; ZooKeeper does not tell those with watches on children."""
    sessions: int
    requests_per_s: float
    """Requests without pings."""
    pings_per_s: float


@dataclass(frozen=True, slots=True)
class FailureResult:
    """What a failure took."""

    case: FailureCase
    rest: RestLoad
    times: LeaderTimes
    led_by_dead: int
    """Partitions that the dead brokers led."""
    zookeeper: ZooKeeperActivity
    broker_requests: int
    """Requests between brokers that survivors received, without replicas' fetches."""
    listeners_called: int | None
    """Actors of the survivors that were told of changes in ZooKeeper; None: not counted."""


class FailureMeter:
    """Measures a cluster at rest, and then one failure of it."""

    def __init__(self, cluster: MeasuredCluster) -> None:
        self._cluster = cluster
        self._words = FourLetterWords(cluster.zookeeper.port)
        self._log = ZooKeeperLog(cluster.zookeeper.transaction_log)

    def measure(self, case: FailureCase, progress: Progress) -> FailureResult:
        """Create the partitions, wait for rest, kill, and wait for rest again.

        Raises ``MeasuringError``; with ``DisturbedError`` another cluster may do better.
        The kill comes when the brokers have just done what they do regularly, so that it is not
        counted if the failure is over before the next time.
        """
        cluster = self._cluster
        progress(f"creates {case.partitions:,} partitions")
        cluster.create_partitions(case.partitions)
        progress("waits for rest")
        load = self.await_rest()
        victims = self._victims(case)
        survivors = [broker_id for broker_id in cluster.brokers if broker_id not in victims]
        progress(f"kills {'broker' if len(victims) == 1 else 'brokers'} {_listed(victims)}")
        led_by_dead, first = cluster.partitions_led_by(victims), cluster.broker_counts(survivors)
        self._log.read_new()
        before = read_counts(self._words)
        since, watches_lost = self._kill(victims)
        times = cluster.await_leaders(victims, since)
        self._await_stillness()
        after = read_counts(self._words)
        _check_sessions(before, after, len(victims))
        counted = activity(before, after, self._log.read_new(), watches_lost)
        last = cluster.broker_counts(survivors)
        rounded = LeaderTimes(round(times.led_ms, 1), round(times.known_ms, 1))
        return FailureResult(
            case,
            load,
            rounded,
            led_by_dead,
            counted,
            last.requests - first.requests,
            None
            if last.listeners_called is None or first.listeners_called is None
            else last.listeners_called - first.listeners_called,
        )

    def _await_stillness(self) -> None:
        """Wait until ZooKeeper has had nothing but pings to do for a second."""
        deadline = time.monotonic() + _STILL_TIMEOUT_S
        last, changed_at = self._work(), time.monotonic()
        while time.monotonic() < changed_at + _STILL_S:
            time.sleep(_POLL_S)
            present = self._work()
            if present != last:
                last, changed_at = present, time.monotonic()
            if time.monotonic() > deadline:
                raise MeasuringError(f"ZooKeeper did not come to rest in {_STILL_TIMEOUT_S:g} s")

    def await_rest(self) -> RestLoad:
        """Measure the load of one period at rest; return in its longest quiet time."""
        self._await_stillness()
        self._log.read_new()
        before, began = read_counts(self._words), time.monotonic()
        last, changed_at = self._work(), began
        quiet: list[tuple[float, float]] = []  # duration and begin
        while time.monotonic() < began + self._cluster.period_s:
            time.sleep(_POLL_S)
            present = self._work()
            if present != last:
                quiet.append((time.monotonic() - changed_at, changed_at))
                last, changed_at = present, time.monotonic()
        after, ended = read_counts(self._words), time.monotonic()
        counted = activity(before, after, self._log.read_new())
        # The last quiet time continues with the first one of the next period.
        remaining_s = quiet[0][0] if quiet else self._cluster.period_s
        quiet.append((ended - changed_at + remaining_s, changed_at))
        longest_s, quiet_at = max(quiet)
        if quiet_at != changed_at or remaining_s < longest_s / 2:
            time.sleep(max(0.0, quiet_at + self._cluster.period_s - time.monotonic()))
        summary, seconds = self._words.wchs(), ended - began
        return RestLoad(
            watches=after.watches,
            watched_paths=summary.paths,
            sessions=len(after.sessions),
            requests_per_s=(counted.read_requests + counted.write_requests) / seconds,
            pings_per_s=counted.pings / seconds,
        )

    def _work(self) -> tuple[int, int, int]:
        counts = read_counts(self._words)
        return (
            counts.updates,
            sum(session.last_request for session in counts.sessions.values()),
            counts.fired,
        )

    def _victims(self, case: FailureCase) -> list[BrokerId]:
        cluster, controller = self._cluster, self._cluster.controller()
        begin = cluster.brokers.index(cluster.leader_of(0))
        ring = [*cluster.brokers[begin:], *cluster.brokers[:begin]]
        others = [broker_id for broker_id in ring if broker_id != controller]
        if case.includes_controller:
            if controller is None:
                raise MeasuringError("this design has no controller")
            return [controller, *others][: case.failures]
        return others[: case.failures]

    def _kill(self, broker_ids: Collection[BrokerId]) -> tuple[float, int]:
        """Kill brokers; return the moment, and the watches that their connections had.

        A guardian closes the session of a dead broker, and then watches of others fire. To tell
        them apart the guardians are held until all connections are gone, which takes less time than
        the end of a process.
        """
        pids = [self._cluster.pid(broker_id) for broker_id in broker_ids]
        before = read_counts(self._words)
        with held(_guardians(pids)):
            since = time.monotonic()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            remaining = len(before.sessions) - len(pids)
            while len(self._words.cons()) > remaining:
                if time.monotonic() > since + _DEATH_TIMEOUT_S:
                    raise MeasuringError(f"brokers {_listed(broker_ids)} are still connected")
                time.sleep(_DEATH_POLL_S)
            return since, before.watches - read_counts(self._words).watches


def _check_sessions(before: ZooKeeperCounts, after: ZooKeeperCounts, died: int) -> None:
    """Raise ``DisturbedError`` if others than the dead brokers lost a session."""
    lost = len(before.sessions.keys() - after.sessions.keys()) - died
    if lost or after.sessions.keys() - before.sessions.keys():
        raise DisturbedError(
            f"{lost} brokers lost their sessions when others died: the machine is too busy"
        )


def _guardians(pids: Sequence[int]) -> list[int]:
    """Return the processes that close the sessions of these processes."""
    return [guardian for pid in pids for guardian in processes_with(f"--pid\0{pid}\0")]


def _listed(broker_ids: Collection[BrokerId]) -> str:
    return ", ".join(map(str, broker_ids))
