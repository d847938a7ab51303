"""With which settings Spark starts: the user's before ours."""

import os
from pathlib import Path

import pytest
from pyspark import SparkConf

from regent.config.java import JavaRuntime
from regent.jobs import spark_settings
from regent.jobs.spark_settings import (
    add_defaults,
    add_local_defaults,
    ignore_user_settings,
    submit_command,
    submit_environment,
)

JAVA = JavaRuntime(Path("/java"), Path("/java/bin/java"), 17)
OURS = "spark.sql.adaptive.enabled"
HOST = "spark.driver.host"
SHUFFLE = "spark.sql.shuffle.partitions"
OF_THE_USER = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_THE_USER, "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # so that they are restored
        monkeypatch.delenv(name)


def completed(master: str, **known: str) -> dict[str, str]:
    """Return the settings of a session, of which spark-submit has found ``known``."""
    conf = SparkConf(loadDefaults=False).setMaster(master)
    for name, value in known.items():
        conf.set(name.replace("_", "."), value)
    add_defaults(conf)
    add_local_defaults(conf, Path("/directory"))
    return dict(conf.getAll())


def test_a_job_has_the_variables_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dtheirs=1")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    environment = submit_environment(JAVA, tmp_path, ("-XX:OurOption",))
    assert environment["HADOOP_CONF_DIR"] == "/etc/hadoop"
    assert environment["SPARK_HOME"] == "/opt/spark"
    options = environment["SPARK_SUBMIT_OPTS"].split()
    assert options[-1] == "-Dtheirs=1", "the last one counts"
    assert "-XX:OurOption" in options
    command = submit_command("/opt/spark", {"spark.a": "1"})
    assert command[0] == "/opt/spark/bin/spark-submit"
    assert command[command.index("spark.a=1") - 1] == "--conf"
    assert command[-3:] == ["--packages", "a:b:1", "pyspark-shell"]


def test_the_service_ignores_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in OF_THE_USER:
        monkeypatch.setenv(name, "/of/the/user")
    ignore_user_settings()
    assert "/of/the/user" not in submit_environment(JAVA, tmp_path, ()).values()
    assert not os.environ.keys() & set(OF_THE_USER)


def test_the_class_archive_is_only_for_the_spark_that_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = tmp_path / "classes.jsa"
    archive.touch()
    monkeypatch.setattr(spark_settings, "class_archive_path", lambda _: archive)
    assert str(archive) in submit_environment(JAVA, tmp_path, ())["SPARK_SUBMIT_OPTS"]
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert str(archive) not in submit_environment(JAVA, tmp_path, ())["SPARK_SUBMIT_OPTS"]


def test_a_setting_of_the_user_is_stronger_than_ours():
    assert completed("local[2]")[OURS] == "false"
    assert completed("yarn", spark_driver_maxResultSize="2g")["spark.driver.maxResultSize"] == "2g"
    assert completed("local[2]", spark_sql_adaptive_enabled="true")[OURS] == "true"


def test_ours_are_only_for_a_local_master():
    assert completed("local[3,2]")[SHUFFLE] == "3"
    assert completed("local")[SHUFFLE] == "1"
    assert int(completed("local[*]")[SHUFFLE]) >= 1
    for master in ("yarn", "spark://10.0.0.1:7077", "k8s://https://host"):
        unlimited = {"spark.driver.maxResultSize": "0"}
        assert completed(master) == {"spark.master": master, **unlimited}
    on_loopback = completed("spark://127.0.0.1:7077")
    assert on_loopback[HOST] == "127.0.0.1"
    assert OURS not in on_loopback


AUTHENTICATE = "spark.authenticate"
ENCRYPTED = "spark.network.crypto.enabled"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[3]", "local[3,2]"])
def test_a_local_driver_answers_only_callers_with_its_secret(master: str):
    settings = completed(master)
    assert settings[AUTHENTICATE] == settings[ENCRYPTED] == "true"


@pytest.mark.parametrize("chosen", ["true", "false"])
def test_a_choice_of_the_user_applies_to_encryption_too(chosen: str):
    settings = completed("local[2]", spark_authenticate=chosen)
    assert settings[AUTHENTICATE] == chosen
    assert ENCRYPTED not in settings, "Spark does not start with it and without authentication"


@pytest.mark.parametrize("master", ["yarn", "spark://127.0.0.1:7077", "local-cluster[2,1,1024]"])
def test_the_secret_of_a_cluster_manager_is_the_matter_of_its_user(master: str):
    assert AUTHENTICATE not in completed(master)
