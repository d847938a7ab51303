"""Looking again and again, less and less often."""

from __future__ import annotations

import pytest

from regent.client.pauses import pauses


def test_pauses_grow_and_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("regent.client.pauses.time.sleep", sleep)
    monkeypatch.setattr("regent.client.pauses.time.monotonic", lambda: now[0])

    assert len(list(pauses(deadline=103.0))) == len(slept) + 1
    assert slept[:-1] == sorted(slept[:-1])
    assert max(slept) == 0.5
    assert sum(slept) == pytest.approx(3.0)


def test_without_time_there_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regent.client.pauses.time.sleep", None)

    assert len(list(pauses(deadline=0.0))) == 1
