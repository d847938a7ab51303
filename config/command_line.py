"""How a user calls this program, and its pip, from the shell that the program was started in.

Users copy hints into their shell. Where ``regent`` and ``pip`` are not found there, or are other
programs, the hints name the paths of ours.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

COMMAND: Final = (sys.executable, "-P", "-m", "regent")
"""The start of a command line that runs this program as a child, in any current directory.

``-P`` keeps the current directory out of Python's module path: Python must not import a file
``click.py`` there instead of the library.
"""

DISTRIBUTION = "regent-cluster"
"""Our name for pip: on PyPI, ``regent`` is another package."""

JOBS = f"{DISTRIBUTION}[jobs]"
"""The requirement of the Spark jobs, ``produce``, ``consume`` and the embedded ZooKeeper."""

EXIT_INTERRUPTED: Final = 130
"""The exit status after SIGINT, as shells have it: 128 + 2."""

SAME_SIGNAL_S: Final = 0.25
"""timeout(1) and some terminals send a signal twice: within this time it is one request."""

_NAME = "regent"
_MAIN = Path(__file__).parents[1] / "__main__.py"  # what ``python -m regent`` runs


def program() -> str:
    """Return how to call this program again: ``regent`` or ``.venv/bin/python run.py``."""
    called = Path(sys.argv[0])
    if called.name == _NAME:
        return _typed(called)
    if called.name == "run.py" and _typed(_script(_NAME)) != _NAME:
        return f"{_typed(Path(sys.executable))} {_typed(called)}"
    if called == _MAIN and _typed(_script(_NAME)) != _NAME:
        return f"{_typed(Path(sys.executable))} -m regent"
    return _NAME


def pip_install(requirement: str) -> str:
    """Return the command that installs ``requirement`` where this program runs."""
    return f"{_typed(_script('pip'))} install {shlex.quote(requirement)}"


def _script(name: str) -> Path:
    return Path(sys.prefix) / "bin" / name


def _typed(path: Path) -> str:
    """Return the shortest form of a path that means this file in the user's shell."""
    found = shutil.which(path.name)
    if found is not None and Path(found).absolute() == path.absolute():
        return path.name
    absolute, here = Path(os.path.normpath(path.absolute())), Path.cwd()
    shown = absolute.relative_to(here) if absolute.is_relative_to(here) else absolute
    return shlex.quote(str(shown))
