"""The test that README shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"


def test_the_test_that_readme_shows_passes() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test()
