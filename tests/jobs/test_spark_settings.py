"""With which settings Spark starts: the user's before ours."""

from pathlib import Path

import pytest
from pyspark import SparkConf

from regent.config.java import JavaRuntime
from regent.jobs.spark_settings import SparkSettings, spark_settings

JAVA = JavaRuntime(Path("/java"), Path("/java/bin/java"), 17)
OURS = "spark.sql.adaptive.enabled"
HOST = "spark.driver.host"
SHUFFLE = "spark.sql.shuffle.partitions"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)


def of_a_job(directory: Path, **conf: str) -> SparkSettings:
    return spark_settings(JAVA, directory, conf, ("-XX:OurOption",), is_private=False)


def completed(settings: SparkSettings, master: str, **known: str) -> dict[str, str]:
    """Return the settings of a session, of which spark-submit has found ``known``."""
    conf = SparkConf(loadDefaults=False).setMaster(master)
    for name, value in known.items():
        conf.set(name.replace("_", "."), value)
    return dict(settings.complete(conf).getAll())


def test_a_job_has_the_variables_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dtheirs=1")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    settings = of_a_job(tmp_path)
    assert settings.environment["HADOOP_CONF_DIR"] == "/etc/hadoop"
    options = settings.environment["SPARK_SUBMIT_OPTS"].split()
    assert options[-1] == "-Dtheirs=1", "the last one counts"
    assert "-XX:OurOption" in options
    assert list(settings.command[-3:]) == ["--packages", "a:b:1", "pyspark-shell"]
    assert settings.working_directory == Path.cwd()


def test_a_private_session_ignores_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.setenv(name, "/of/the/user")
    settings = spark_settings(JAVA, tmp_path, {}, (), is_private=True)
    assert "/of/the/user" not in settings.environment.values()
    assert settings.working_directory == tmp_path
    assert "spark.master=local[2]" in settings.command


def test_a_setting_of_the_user_is_stronger_than_ours(tmp_path: Path):
    settings = of_a_job(tmp_path, **{"spark.a": "1"})
    assert list(settings.command[1:3]) == ["--conf", "spark.a=1"]
    assert completed(settings, "local[2]")[OURS] == "false"
    assert completed(settings, "local[2]", spark_sql_adaptive_enabled="true")[OURS] == "true"


def test_ours_are_only_for_a_local_master(tmp_path: Path):
    settings = of_a_job(tmp_path)
    assert completed(settings, "local[3,2]")[SHUFFLE] == "3"
    assert completed(settings, "local")[SHUFFLE] == "1"
    assert int(completed(settings, "local[*]")[SHUFFLE]) >= 1
    for master in ("yarn", "spark://10.0.0.1:7077", "k8s://https://host"):
        assert completed(settings, master) == {"spark.master": master}
    on_loopback = completed(settings, "spark://127.0.0.1:7077")
    assert on_loopback[HOST] == "127.0.0.1"
    assert OURS not in on_loopback


def test_the_logging_of_the_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "log4j2" in of_a_job(tmp_path).environment["SPARK_SUBMIT_OPTS"]
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").touch()
    assert "log4j2" not in of_a_job(tmp_path).environment["SPARK_SUBMIT_OPTS"]
