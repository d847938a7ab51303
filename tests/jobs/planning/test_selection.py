"""What a plan loads into the memory of the driver."""

from pathlib import Path

import pytest

from regent.jobs.command import InputError
from regent.jobs.planning import selection
from regent.jobs.planning.model import Brokers


def brokers_with(replicas: int) -> Brokers:
    return Brokers([0, 1], 2, [0, 0], [0, 0], [replicas - 1, 1], [1, 1])


def test_an_assignment_that_does_not_fit_into_the_driver_is_refused_with_the_number_that_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(selection, "_CGROUP_LIMIT", limit)
    limit.write_text(f"{2**25}\n")
    selection.check_memory(brokers_with(2**20))
    with pytest.raises(InputError) as refusal:
        selection.check_memory(brokers_with(2**20 + 1))
    assert "32 bytes of memory a replica" in str(refusal.value)
    assert "at most 1,048,576 do" in str(refusal.value)
    limit.write_text("max\n")
    selection.check_memory(brokers_with(2**20 + 1))
