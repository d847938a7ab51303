"""The Spark to start: the installed one without MLlib.

With MLlib every session registers the two SQL functions of MLlib by Scala's reflection, which takes
most of a second. No job uses MLlib.
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
    """The paths of the archives of ``jobs.class_archive``; other JVMs ignore them.

    ``base`` has the classes of Java, if the runtime has no archive; ``spark`` adds those of Spark.
    """

    base: Path
    spark: Path


def class_archives(java: JavaRuntime) -> ClassArchives:
    """Return the paths of the archives for a runtime."""
    suffix = f"java-{java.version}.jsa"
    spark = f"spark-{pyspark.__version__}-{suffix}"
    return ClassArchives(java_cache() / suffix, java_cache() / spark)


def spark_home() -> Path:
    """Return the value for SPARK_HOME; the installed Spark if no copy can be made."""
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
