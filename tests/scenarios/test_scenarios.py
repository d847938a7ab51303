"""The transcripts show what the controller does today.

``pytest tests/scenarios --rewrite`` writes them again; read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.transcript import Transcript

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_is_what_happens(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text(encoding="utf-8")
    now = Transcript().run(written)
    if request.config.getoption("--rewrite"):
        path.write_text(now, encoding="utf-8")
    else:
        assert now.splitlines() == written.splitlines(), "pytest tests/scenarios --rewrite"
