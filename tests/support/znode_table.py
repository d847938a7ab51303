"""Which rows of the table of znodes a path is of."""

from __future__ import annotations

from regent.zk.znodes import ZNODES


def rows_of(path: str) -> list[str]:
    """Return the paths of the rows."""
    return [row.PATH for row in ZNODES if row.names(path) is not None]
