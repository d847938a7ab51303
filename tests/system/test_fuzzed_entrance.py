"""A broker process whose ports are knocked at: ``python -m tests.fuzz`` finds no problem."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regent.testing.waits import scaled

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("port", ["sasl", "tls", "curve"])
def test_changed_logins_and_handshakes_do_no_harm(port: str):
    command = [sys.executable, "-m", "tests.fuzz", "--port", port, "--requests", "1000"]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=scaled(240)
    )
    assert found.returncode == 0, found.stdout + found.stderr
