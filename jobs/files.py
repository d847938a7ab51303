"""The files of a job: on this machine, and on every file system that Spark knows.

A *location* is a path of this machine, or a URI of a Hadoop file system (``hdfs://``, ``s3a://``,
``gs://`` …), whose settings are Spark's (``--conf spark.hadoop.…``). Spark reads and writes what is
large. What the driver needs for itself is copied: a driver shares no disk with its cluster.
"""

from __future__ import annotations

import gzip
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from regent.jobs.command import InputError
from regent.jobs.java_errors import explanation
from regent.jobs.session import is_local

SUCCESS: Final = "_SUCCESS"
"""The last file of a complete directory, as Spark's own writers leave it."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_FILE: Final = re.compile(r"file:/+")
_GLOB: Final = re.compile(r"([\\*?\[\]{}])")


_PATIENCE: Final = {
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.max.retries.on.timeouts": "1",
    "ipc.client.connect.timeout": "5000",
    "fs.s3a.attempts.maximum": "2",
    "fs.s3a.retry.limit": "2",
    "fs.s3a.connection.establish.timeout": "5s",
}
"""A server that does not answer is given up in seconds; by Hadoop's defaults after minutes."""
_DEFAULTS: Final = "-default.xml"  # the source of settings that no user has made
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"


class Entry(NamedTuple):
    """A file or a directory; ``size`` is in bytes."""

    location: str
    is_directory: bool
    size: int

    @property
    def name(self) -> str:
        """The last part of the location."""
        return self.location.rstrip("/").rpartition("/")[2]


def is_remote(location: str) -> bool:
    """Return whether the location is a URI of another file system than this machine's."""
    return bool(_SCHEME.match(location)) and not _FILE.match(location)


def local_path(location: str) -> Path:
    """Return the path of a location on this machine. Raises ``InputError`` for an empty one."""
    if not location:
        raise InputError("the name of a file or directory is empty: is a shell variable not set?")
    return Path(_FILE.sub("/", location, count=1))


def inside(directory: str, name: str) -> str:
    """Return the location of an entry of a directory."""
    return f"{directory.rstrip('/')}/{name}"


def path_to_write(location: str | Path) -> str:
    """Return the form of a location for ``DataFrame.write``.

    In a path of Hadoop a percent sign has no special meaning, as it has in a URI.
    """
    text = str(location)
    return text if is_remote(text) else f"file://{local_path(text).absolute()}"


def path_to_read(location: str | Path) -> str:
    """Return the form of a location for ``spark.read``, which would take it for a glob pattern."""
    return _GLOB.sub(r"\\\1", path_to_write(location))


def location_of(uri: str) -> str:
    """Return the location of what is Spark's ``_metadata.file_path``."""
    location = unquote(uri)
    return location if is_remote(location) else str(local_path(location))


def plain(data: bytes, location: str, *, is_whole: bool = True) -> bytes:
    """Return the text of a file, or of its beginning: decompressed, and without a mark in front.

    As for Spark, a file is compressed if its name ends with ``.gz``. Raises ``InputError``.
    """
    if location.endswith(".gz"):
        try:
            beginning = zlib.decompressobj(zlib.MAX_WBITS | 16)
            data = gzip.decompress(data) if is_whole else beginning.decompress(data)
        except EOFError:
            raise InputError(f"{location} ends too early for gzip: copy the whole file") from None
        except (gzip.BadGzipFile, zlib.error):
            raise InputError(
                f"{location} is not compressed by gzip, as its name says, or it is damaged"
            ) from None
    elif data.startswith(_GZIP):
        raise InputError(f"{location} is compressed by gzip: let its name end with .gz")
    return data.removeprefix(_BOM)


def check_shared(spark: SparkSession, locations: Iterable[str]) -> None:
    """Raise ``InputError`` for a location that the executors do not see: a path of the driver's.

    ``file:///…`` is a path that all machines share.
    """
    if is_local(spark):
        return
    for location in locations:
        if not is_remote(location) and not _FILE.match(location):
            master = spark.sparkContext.master
            raise InputError(
                f"{location} is on this machine, and the executors of {master} are not: use a file"
                " system that they reach (hdfs://, s3a:// …; file:///… is a directory that all"
                " machines share), or --master local[*]"
            )


class JobFiles:
    """The files that one job can reach; ``spark`` is only asked for the session for remote ones."""

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self._spark = spark
        self._copies = ExitStack()

    def close(self) -> None:
        """Remove the copies."""
        self._copies.close()

    def entry(self, location: str) -> Entry | None:
        """Return what is at a location, None if there is nothing. Raises ``InputError``."""
        if is_remote(location):
            with self._reachable(location) as (system, path):
                found = system.exists(path)
                return _remote_entry(system.getFileStatus(path)) if found else None
        path = local_path(location)
        with _readable(location):
            return _local_entry(path, location) if path.exists() else None

    def entries(self, directory: str) -> list[Entry]:
        """Return what is in a directory, sorted by name. Raises ``InputError``."""
        if is_remote(directory):
            with self._reachable(directory) as (system, path):
                found = [_remote_entry(status) for status in system.listStatus(path)]
        else:
            found = []
            with _readable(directory):
                for path in local_path(directory).iterdir():
                    with suppress(FileNotFoundError):  # a broker that runs has removed it
                        found.append(_local_entry(path, directory))
        return sorted(found)

    def head(self, entry: Entry, limit: int) -> bytes:
        """Return the beginning of the text of a file, of ``limit`` bytes.

        Raises ``InputError``.
        """
        return plain(self._head(entry, limit), entry.location, is_whole=False)

    def _head(self, entry: Entry, limit: int) -> bytes:
        if not is_remote(entry.location):
            with _readable(entry.location), local_path(entry.location).open("rb") as file:
                return file.read(limit)
        with self._reachable(entry.location) as (system, path):
            stream = system.open(path)
            try:
                io_utils = self._jvm.org.apache.commons.io.IOUtils
                return bytes(io_utils.toByteArray(stream, min(limit, entry.size)))
            finally:
                stream.close()

    def read(self, location: str) -> bytes:
        """Return the text of a file. Raises ``InputError``."""
        path = self.copy(location)
        with _readable(location):
            return plain(path.read_bytes(), location)

    def copy(self, location: str) -> Path:
        """Return a file or directory as a path of this machine, copied if it is not there.

        Raises ``InputError`` if it does not exist or cannot be read.
        """
        if not is_remote(location):
            return local_path(location)
        target = self._new_folder() / Entry(location, False, 0).name
        with self._reachable(location) as (system, path):
            system.copyToLocalFile(False, path, self._path(path_to_write(target)), True)
        return target

    def put(self, source: Path, location: str) -> None:
        """Copy a file of this machine to a remote location, replacing what is there.

        Raises ``InputError``.
        """
        with self._reachable(location) as (system, path):
            system.copyFromLocalFile(False, True, self._path(path_to_write(source)), path)

    @contextmanager
    def writing(self, location: str) -> Iterator[Path]:
        """Yield a path of this machine; the file written there goes to the location.

        Raises ``InputError``.
        """
        if not is_remote(location):
            yield local_path(location)
            return
        found = self.entry(location)
        if found is not None and found.is_directory:  # Hadoop would write into it
            raise InputError(f"{location} is a directory: name a file")
        path = self._new_folder() / "file"
        yield path
        self.put(path, location)

    def remove(self, directory: str) -> None:
        """Remove a remote directory and all in it."""
        with self._reachable(directory) as (system, path):
            system.delete(path, True)

    # --- Hadoop -----------------------------------------------------------------------------------

    def _new_folder(self) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="regent-copy-")
        return Path(self._copies.enter_context(folder))

    @property
    def _jvm(self) -> Any:
        return self._spark().sparkContext._jvm

    def _hadoop_settings(self) -> Any:
        """Return the settings of the session, with less patience where the user has set nothing."""
        context: Any = self._spark().sparkContext
        settings = self._jvm.org.apache.hadoop.conf.Configuration(
            context._jsc.hadoopConfiguration()
        )
        for name, value in _PATIENCE.items():
            sources = settings.getPropertySources(name)
            if sources is None or all(str(each).endswith(_DEFAULTS) for each in sources):
                settings.set(name, value)
        return settings

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)

    @contextmanager
    def _reachable(self, location: str) -> Iterator[tuple[Any, Any]]:
        """Yield Hadoop's file system and path; its errors become ``InputError``."""
        try:
            path = self._path(location)
            yield path.getFileSystem(self._hadoop_settings()), path
        except (Py4JJavaError, PySparkException) as error:
            raise InputError(f"{location}: {_with_remedy(explanation(error))}") from None


def _with_remedy(cause: str) -> str:
    name, _, message = cause.partition(": ")
    if name.endswith(("UnsupportedFileSystemException", "ClassNotFoundException")):
        return (
            f"{message or name}: give Spark the jar of this file system, for example"
            " --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0 for s3a"
        )
    if name.endswith("FileNotFoundException"):
        return "no such file or directory"
    return cause


def _remote_entry(status: Any) -> Entry:
    return Entry(str(status.getPath().toString()), bool(status.isDirectory()), status.getLen())


def _local_entry(path: Path, given: str) -> Entry:
    # Absolute: workers of a session may have another current directory.
    scheme = "file://" if _FILE.match(given) else ""
    is_directory = path.is_dir()
    size = 0 if is_directory else path.stat().st_size
    return Entry(f"{scheme}{path.absolute()}", is_directory, size)


@contextmanager
def _readable(location: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{location} cannot be read: {error.strerror or error}") from None
