"""What processes use, as benchmarks count it."""

from __future__ import annotations

import os

from bench.processes import Usage


def test_the_processor_time_of_other_brokers_is_told_apart() -> None:
    ours, parent = os.getpid(), os.getppid()

    assert Usage([ours]).result().keys() == {"cpu_s", "bench_cpu_s"}
    assert Usage([ours], [parent]).result().keys() == {"cpu_s", "bench_cpu_s", "others_cpu_s"}


def test_a_process_is_not_counted_among_the_others_too() -> None:
    used = Usage([os.getpid()], [os.getpid()]).result()

    assert "others_cpu_s" not in used
