"""Names of local files for Spark, which may contain any character.

In a ``file:`` path of Hadoop a percent sign has no special meaning, as it has in a URI. A path to
read may be a glob pattern.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlparse


def path_to_write(path: Path) -> str:
    """Return the form of ``path`` for ``DataFrame.write``."""
    return f"file://{path.absolute()}"


def path_to_read(path: Path) -> str:
    """Return the form of ``path`` for ``spark.read``, with brackets and braces escaped."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path_to_write(path))


def path_from_spark(uri: str) -> Path:
    """Return the path in ``_metadata.file_path``, which is encoded as a URI."""
    return Path(unquote(urlparse(uri).path))
