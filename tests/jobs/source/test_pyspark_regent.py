"""Spark finds the data source of an installed Regent."""

import tomllib
from pathlib import Path

from regent.jobs import pyspark_regent
from regent.jobs.source import RegentDataSource

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_module_that_spark_imports_has_the_data_source():
    assert pyspark_regent.DefaultSource is RegentDataSource
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folder = settings["package-dir"][""]
    files = [ROOT / folder / f"{name}.py" for name in settings["py-modules"]]
    assert [Path(pyspark_regent.__file__).resolve()] == files
