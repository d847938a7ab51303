"""The command line: ``python run.py COMMAND``, or ``regent COMMAND`` once installed."""

from __future__ import annotations

from regent.cli.main import main

if __name__ == "__main__":
    main()
