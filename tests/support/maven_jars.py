"""Jars from Maven Central for tests, fetched once by Ivy, which comes with PySpark.

They are kept in the Python environment. Which files Ivy may bring is fixed by their SHA-256.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from regent.config.java import derived_directory, find_java, java_cache
from regent.testing.waits import scaled

FETCH_TIMEOUT_S: Final = scaled(300.0)
SPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"
_MODULE: Final = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="regent" module="tests"/>
  <dependencies defaultconf="*->default">{dependencies}</dependencies>
</ivy-module>
"""


class JarsUnavailableError(OSError):
    """Jars cannot be fetched, or are not the ones that are wanted; the message is one line."""


class MavenJars(NamedTuple):
    """Jars that are fetched together.

    ``dependencies`` are elements of an ivy.xml; ``sha256`` is that of the lines that ``sha256sum``
    prints for the files, in the order of their names. Jars of other ``types`` are left out.
    """

    name: str
    dependencies: str
    sha256: str
    types: tuple[str, ...] = ("jar",)

    def fetched(self) -> list[Path]:
        """Return the files in the order of their names; fetch them if they are not yet here.

        Raises JavaNotFoundError, JarsUnavailableError.
        """
        return sorted(derived_directory(self.name, self._fill).iterdir())

    def _fill(self, directory: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="regent-ivy-") as scratch:
            self._fetch(directory, Path(scratch))
        self._check(directory)

    def _fetch(self, directory: Path, scratch: Path) -> None:
        ivy_file = scratch / "ivy.xml"
        ivy_file.write_text(_MODULE.format(dependencies=self.dependencies))
        command = [
            *(str(find_java().executable), "-jar", str(spark_jar("ivy"))),
            *("-cache", str(scratch / "cache"), "-ivy", str(ivy_file), "-types", *self.types),
            *("-retrieve", f"{directory}/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise self._unavailable() from error
        if ended.returncode:
            unavailable = self._unavailable()
            unavailable.add_note(ended.stdout + ended.stderr)
            raise unavailable

    def _check(self, directory: Path) -> None:
        lines = [
            f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n"
            for jar in sorted(directory.iterdir())
        ]
        found = hashlib.sha256("".join(lines).encode()).hexdigest()
        if found != self.sha256:
            error = JarsUnavailableError(f"{self.name}: SHA-256 {found}, not {self.sha256}")
            error.add_note("".join(lines))
            raise error

    def _unavailable(self) -> JarsUnavailableError:
        home = java_cache() / self.name
        return JarsUnavailableError(
            f"Ivy cannot fetch {self.name} from Maven Central: put its jars into {home}"
        )


def spark_jars(*names: str) -> list[Path]:
    """Return jars that come with PySpark, by the beginning of their names before the version."""
    return [jar for name in names for jar in sorted(SPARK_JARS.glob(f"{name}-[0-9]*.jar"))]


def spark_jar(name: str) -> Path:
    """Return the one jar of this name that comes with PySpark."""
    (jar,) = spark_jars(name)
    return jar
