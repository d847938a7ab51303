"""What a plan loads into the memory of the driver."""

import tracemalloc
from pathlib import Path

import pytest

from regent.jobs.command import InputError
from regent.jobs.planning import selection
from regent.jobs.planning.fair_share import spreads
from tests.support.planned_clusters import cluster_of


def test_an_assignment_that_does_not_fit_into_the_driver_is_refused_with_the_number_that_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(selection, "_CGROUP_LIMIT", limit)
    limit.write_text(f"{2**25}\n")
    selection.check_memory(2**20)
    with pytest.raises(InputError) as refusal:
        selection.check_memory(2**20 + 1)
    assert "32 bytes of memory a replica" in str(refusal.value)
    assert "at most 1,048,576 do" in str(refusal.value)
    limit.write_text("max\n")
    selection.check_memory(2**20 + 1)


def test_a_partition_with_many_replicas_makes_no_array_of_their_square():
    wide = [*range(1_000)]
    layout = cluster_of([*[[p % 7, 9] for p in range(99)], wide], dict.fromkeys(wide, 0)).layout()
    layout.put((0, 1), 8)
    tracemalloc.start()
    try:
        assert layout.new_replicas().nonzero()[1].tolist() == [1]
        assert spreads(layout.before) == {(2, 2): 99, (1_000, 1_000): 1}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * layout.before.size
