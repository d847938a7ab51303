"""Refused batches leave nothing behind, although a broker's garbage collector rarely runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regent.testing.waits import scaled

ROOT = Path(__file__).parents[3]
TIMEOUT_S = scaled(300.0)
MOST_MB = 20


@pytest.mark.slow
def test_a_thousand_refused_batches_of_every_kind_take_no_memory():
    command = [sys.executable, "-m", "tests.broker.api.refused_batches"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) < MOST_MB, done.stdout
