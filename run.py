"""The command line: ``python run.py COMMAND``, or ``regent COMMAND`` once installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if __name__ == "__main__":
    if find_spec("regent") is None:
        sys.exit("regent is not set up in this Python: run `make` first")
    from regent.cli.main import main

    main()
