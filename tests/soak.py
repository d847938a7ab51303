"""``python -m tests.soak --minutes 120``: random faults under load for long; prints JSON.

A chapter is a topic of its own: faults happen to it one after the other while 2,000 records a
second are produced and read, then what everybody saw is checked, and the topic is deleted. So what
is kept in memory here stays small however long it runs, and whatever grows is the brokers' own.

Transactions run at the same time. With ``--secured`` everybody logs in, ACLs say who may do what,
and keys, certificates and passwords are replaced while the load runs.

``violations`` must be empty, and ``processes`` flat: a sample after each fault of every broker's
resident memory and open files, by process, as faults replace them.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import click
from confluent_kafka import KafkaException

from tests.support.breakable_cluster import BROKERS, SMALL_DISK, BreakableCluster, small_disk
from tests.support.fault_rounds import run_round
from tests.support.faults import FAULTS, SECURITY_FAULTS, Fault, fill_a_disk
from tests.support.load import Load

PARTITIONS = 12
SMALL_DISK_BYTES = 512 * 1024 * 1024
SHOWN_VIOLATIONS = 20


@dataclass(slots=True)
class Soak:
    """What has happened so far."""

    started: float = field(default_factory=monotonic)
    chapters: int = 0
    acknowledged: int = 0
    committed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def minutes(self) -> float:
        """How long it has run."""
        return round((monotonic() - self.started) / 60, 2)

    def sample(self, cluster: BreakableCluster) -> None:
        """Note what every broker needs."""
        for broker_id in BROKERS:
            pid = cluster.pid(broker_id)
            process = Path(f"/proc/{pid}")
            pages = int((process / "statm").read_text().split()[1])
            self.processes.append(
                {
                    "minutes": self.minutes,
                    "broker": broker_id,
                    "pid": pid,
                    "resident_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
                    "files": len(list((process / "fd").iterdir())),
                }
            )

    def chapter(
        self,
        cluster: BreakableCluster,
        faults: list[Fault],
        chance: random.Random,
        *,
        records_per_s: float,
    ) -> None:
        """Have these faults happen one after the other to one topic, and check what it has."""
        self.chapters += 1
        topic = f"soak-{self.chapters:05d}"

        def before(load: Load, fault: Fault) -> None:
            load.await_progress(int(records_per_s * chance.uniform(1, 10)))
            sys.stderr.write(f"{self.minutes} min: {topic}: {fault.__name__}\n")

        def after(fault: Fault) -> None:
            self.faults[fault.__name__] += 1
            self.sample(cluster)

        done = run_round(
            *(cluster, topic, faults, chance),
            partitions=PARTITIONS,
            records_per_s=records_per_s,
            before=before,
            after=after,
        )
        self.acknowledged += done.acknowledged
        self.committed += done.committed
        self.violations += [
            f"{topic}: {broken.promise}: {broken.what}" for broken in done.violations
        ]

    def result(self, seed: int) -> dict[str, Any]:
        """Return what there is to tell."""
        return {
            "seed": seed,
            "minutes": self.minutes,
            "chapters": self.chapters,
            "acknowledged": self.acknowledged,
            "committed": self.committed,
            "faults": dict(self.faults),
            "violations": len(self.violations),
            "examples": self.violations[:SHOWN_VIOLATIONS],
            "processes": self.processes,
        }


@click.command()
@click.option("--minutes", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--records-per-s", type=click.FloatRange(1), default=2_000.0, show_default=True)
@click.option("--faults-per-chapter", type=click.IntRange(1), default=5, show_default=True)
@click.option("--secured", is_flag=True, help="With TLS, logins and ACLs; keys are replaced, too.")
@click.option("--seed", type=int, help="Which faults happen; by chance when not given.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Kept; temporary when not given.")
def main(
    minutes: float,
    records_per_s: float,
    faults_per_chapter: int,
    secured: bool,
    seed: int | None,
    data_dir: Path | None,
) -> None:
    """Break a cluster again and again; exit with 1 when a promise was broken."""
    chosen = random.randrange(2**32) if seed is None else seed
    chance, soak, kinds = random.Random(chosen), Soak(), list(FAULTS)
    if secured:
        kinds += SECURITY_FAULTS
    with ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            stack.enter_context(small_disk(folder / "broker-1" / SMALL_DISK, SMALL_DISK_BYTES))
            kinds.append(fill_a_disk)
        except PermissionError as error:
            sys.stderr.write(f"no disk will be full: {error}\n")
        cluster = stack.enter_context(BreakableCluster(folder, is_secured=secured))
        try:
            while soak.minutes < minutes:
                faults = chance.choices(kinds, k=faults_per_chapter)
                soak.chapter(cluster, faults, chance, records_per_s=records_per_s)
        except (AssertionError, TimeoutError, KafkaException) as error:
            # Something did not become well again.
            soak.violations.append(f"after {soak.minutes} min: {error!r}")
    sys.stdout.write(json.dumps(soak.result(chosen), indent=1) + "\n")
    sys.exit(bool(soak.violations))


if __name__ == "__main__":
    main()
