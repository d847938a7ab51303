"""The Spark that is started here: the one that is installed, but for MLlib.

Every session of a Spark that has MLlib registers MLlib's SQL functions, of which there are two, by
Scala's reflection: that takes most of a second. Nothing here uses MLlib.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from regent.config.java import JavaRuntime, derived_directory, java_cache

INSTALLED: Final = Path(pyspark.__file__).parent
_JARS: Final = "jars"
_LEFT_OUT: Final = ("spark-mllib_",)


class ClassArchives(NamedTuple):
    """Where ``jobs.class_archive`` puts its archives; a JVM they do not fit ignores them.

    ``base`` has the classes of Java, and is there only if the runtime came without one of its own;
    ``spark`` has those of Spark on top.
    """

    base: Path
    spark: Path


def class_archives(java: JavaRuntime) -> ClassArchives:
    """Return where the archives for a runtime are, or would be."""
    suffix = f"java-{java.version}.jsa"
    spark = f"spark-{pyspark.__version__}-{suffix}"
    return ClassArchives(java_cache() / suffix, java_cache() / spark)


def spark_home() -> Path:
    """Return what SPARK_HOME is to be; the installed one where no other can be made."""
    name = f"spark-{pyspark.__version__}-{zlib.crc32(bytes(INSTALLED)):08x}"
    with suppress(OSError):
        return derived_directory(name, _link)
    return INSTALLED


def _link(home: Path) -> None:
    for path in INSTALLED.iterdir():
        if path.name != _JARS:
            (home / path.name).symlink_to(path)
    (home / _JARS).mkdir()
    for jar in (INSTALLED / _JARS).iterdir():
        if not jar.name.startswith(_LEFT_OUT):
            (home / _JARS / jar.name).symlink_to(jar)
