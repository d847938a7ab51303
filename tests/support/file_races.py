"""What another process does to files between two steps of a reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def between_two_opens(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let ``act`` happen once: before the second ``Path.open`` for reading."""
    opened, original = 0, Path.open

    def open_(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        nonlocal opened
        if mode == "rb":
            opened += 1
            if opened == 2:
                act()
        return original(path, mode, *args, **options)

    monkeypatch.setattr(Path, "open", open_)
