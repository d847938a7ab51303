"""The files of cases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN_TABLES = (HERE / "cases.json", HERE / "extra_cases.json")
OWN_COORDINATOR_TABLES = (HERE / "coordinators" / "cleaner_cases.json",)
SECTIONS = ("cases", "derived_cases")


def read_table(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every case with its group. Raises ``ValueError`` for a file of another format."""
    content = json.loads(path.read_text(encoding="utf-8"))
    unknown = set(content) - {"meta", *SECTIONS}
    if unknown:
        raise ValueError(f"{path}: unknown sections {sorted(unknown)}")
    for section in SECTIONS:
        for group, cases in content.get(section, {}).items():
            for case in cases:
                yield group, case
