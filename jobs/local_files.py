"""Names of local files for Spark, which may contain any character.

Hadoop takes a ``file:`` path as it stands: percent signs in it mean themselves, so that it is no
URI, and where files are read it may be a glob pattern.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlparse


def path_to_write(path: Path) -> str:
    """Return what ``DataFrame.write`` takes for ``path``."""
    return f"file://{path.absolute()}"


def path_to_read(path: Path) -> str:
    """Return what ``spark.read`` takes for exactly ``path``, brackets and braces included."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path_to_write(path))


def path_from_spark(uri: str) -> Path:
    """Return the path that ``_metadata.file_path`` tells of, which is encoded as a URI is."""
    return Path(unquote(urlparse(uri).path))
