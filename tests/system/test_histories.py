"""Real clients during faults, checked record by record.

Each round is another history: ``--rounds 20`` runs twenty of every fault. Random choices decide
what happens where; a failure prints the seed. Longer ones: ``python -m tests.soak``.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.breakable_cluster import SMALL_DISK, BreakableCluster, small_disk
from tests.support.fault_rounds import run_round
from tests.support.faults import (
    FAULTS,
    SECURITY_FAULTS,
    Fault,
    fill_a_disk,
    kill_the_leader,
    tear_a_log,
)
from tests.support.histories import summary

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS = 6
SMALL_DISK_BYTES = 64 * 1024 * 1024
NIGHTLY_FAULTS = set(FAULTS) - {kill_the_leader, tear_a_log}


def run_faults(
    cluster: BreakableCluster,
    faults: Sequence[Fault],
    chance: random.Random,
    *,
    transactional_producers: int = 0,
) -> str:
    """Run faults under load; return the violations."""
    topic = f"history-{uuid.uuid4().hex[:8]}"
    done = run_round(
        *(cluster, topic, faults, chance),
        partitions=PARTITIONS,
        transactional_producers=transactional_producers,
    )
    assert done.acknowledged
    assert bool(done.committed) is bool(transactional_producers)
    return summary(done.violations)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.nightly if fault in NIGHTLY_FAULTS else ())
        for fault in FAULTS
    ],
    ids=lambda fault: fault.__name__,
)
def test_acknowledged_records_survive(
    cluster: BreakableCluster, fault: Fault, rounds: Iterator[random.Random]
):
    for chance in rounds:
        broken = run_faults(cluster, [fault], chance)
        assert not broken, broken


@pytest.mark.nightly
def test_acknowledged_records_survive_a_full_disk(tmp_path: Path, rounds: Iterator[random.Random]):
    """One of the two log directories of a broker is full: only its replicas go offline."""
    with ExitStack() as stack:
        disk = tmp_path / "broker-1" / SMALL_DISK
        try:
            stack.enter_context(small_disk(disk, SMALL_DISK_BYTES))
        except PermissionError as error:
            pytest.skip(f"no file system can be mounted: {error}")
        cluster = stack.enter_context(BreakableCluster(tmp_path))
        for chance in rounds:
            broken = run_faults(cluster, [fill_a_disk], chance)
            assert not broken, broken


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_acknowledged_records_survive_all_faults_with_all_security_on(
    tmp_path: Path, rounds: Iterator[random.Random]
):
    """Everybody logs in. Keys, certificates and passwords are replaced between the faults."""
    with ExitStack() as stack:
        faults = [*FAULTS, *SECURITY_FAULTS]
        with suppress(PermissionError):
            disk = tmp_path / "broker-1" / SMALL_DISK
            stack.enter_context(small_disk(disk, SMALL_DISK_BYTES))
            faults.append(fill_a_disk)
        cluster = stack.enter_context(BreakableCluster(tmp_path, is_secured=True))
        for chance in rounds:
            order = chance.sample(faults, len(faults))
            broken = run_faults(cluster, order, chance, transactional_producers=2)
            assert not broken, broken
