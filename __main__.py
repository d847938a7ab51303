"""``python -m regent COMMAND``: the command line without its script."""

from __future__ import annotations

from regent.cli.main import main

main()
