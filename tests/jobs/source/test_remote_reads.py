"""Log directories are read from Hadoop's file systems, by Python workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from regent import spark as regent_spark
from regent.core.model import TopicPartition
from regent.jobs.files import JobFiles
from regent.jobs.source.worker_files import WorkerFiles
from regent.testing.waits import scaled
from tests.jobs.source.log_files import write_log
from tests.support.maven_jars import JarsUnavailableError
from tests.support.mini_hadoop import MiniHadoop
from tests.support.object_store import ObjectStore
from tests.support.own_disks import OwnDisksUnavailableError, require_own_disks
from tests.support.standalone_spark import StandaloneSpark

pytestmark = pytest.mark.spark

ORDERS = [TopicPartition("orders", number) for number in range(2)]
VIEW = "viewfs://backup"  # a file system of Hadoop: other names for local folders


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """The settings of a Hadoop file system whose folder /brokers is the folder of the test."""
    return {"fs.viewfs.mounttable.backup.link./brokers": f"file://{tmp_path}"}


def test_remote_logs_have_the_records_of_local_ones(
    session: SparkSession, tmp_path: Path, settings: dict[str, str]
):
    for number, count in enumerate((120, 60)):
        write_log(tmp_path / str(number), ORDERS[0], count)
    write_log(tmp_path / "1", ORDERS[1], 30)
    options = {"subscribe": "orders", "hadoop": orjson.dumps(settings).decode()}
    remote = ",".join(f"{VIEW}/brokers/{number}" for number in range(2))
    local = ",".join(str(tmp_path / str(number)) for number in range(2))
    reader = session.read.format("regent").options(**options)
    frames = [reader.option("logDirs", dirs).load() for dirs in (remote, local)]
    found, expected = (sorted(map(tuple, frame.collect())) for frame in frames)
    assert found == expected
    assert len(found) == 150


def test_a_damaged_remote_file_is_named_by_its_location(
    session: SparkSession, tmp_path: Path, settings: dict[str, str]
):
    write_log(tmp_path, ORDERS[0], 20)
    (segment,) = tmp_path.glob("*/*.log")
    segment.write_bytes(segment.read_bytes()[:-9] + b"damaged!!")
    reader = session.read.format("regent").option("hadoop", orjson.dumps(settings).decode())
    reader = reader.options(subscribe="orders", logDirs=f"{VIEW}/brokers")
    with pytest.raises(PySparkException, match=f"{VIEW}/brokers/orders-0/0*.log: at .*CRC"):
        reader.load().collect()
    with pytest.raises(PySparkException, match=f"logDirs: {VIEW}/brokers/none is no directory"):
        reader.option("logDirs", f"{VIEW}/brokers/none").load().collect()
    with pytest.raises(PySparkException, match='nofs://x: No FileSystem for scheme "nofs"'):
        reader.option("logDirs", "nofs://x").load().collect()


def test_copies_of_remote_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Copied(JobFiles):
        def copy(self, location: str) -> Path:
            path = self._new_folder() / Path(location).name
            path.write_text(location)
            return path

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("regent.jobs.source.worker_files.JobFiles", Copied)
    with WorkerFiles().here("hdfs://host/log") as path:
        assert path.read_text() == "hdfs://host/log"
        assert os.listdir(tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
def test_logs_on_hdfs_are_read_by_the_settings_of_the_session(
    session: SparkSession, hadoop: MiniHadoop, tmp_path: Path
):
    write_log(tmp_path / "log", ORDERS[0], 120)
    files = JobFiles(lambda: session)
    files.put(tmp_path / "log", f"{hadoop.address}/backup %41{{b}}")
    files.close()
    frame = regent_spark.topics(session, [f"{hadoop.address}/backup %41{{b}}"], subscribe="orders")
    assert sorted(row.offset for row in frame.collect()) == list(range(120))


PROGRAM = """
import json, sys
from regent import spark as regent
from regent.jobs.session import spark_session

master, conf, place = json.loads(sys.argv[1])
with spark_session(master, conf=conf) as session:
    placed = regent.place(session, [("t", 100000, 3)], [1, 2, 3])
    frame = regent.topics(session, [place], subscribe="orders")
    print(json.dumps([placed.count(), *sorted(row.offset for row in frame.collect())]))
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_executors_read_logs_on_s3_and_see_no_file_of_the_driver(
    java: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    del java
    try:
        require_own_disks(tmp_path)
        store = ObjectStore(tmp_path)
    except OwnDisksUnavailableError as error:
        pytest.skip(str(error))
    except JarsUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    write_log(tmp_path / "log", ORDERS[0], 120)
    folder = tmp_path_factory.mktemp("standalone")
    with store, StandaloneSpark(folder, hidden=tmp_path) as cluster:
        for path in (tmp_path / "log").rglob("*"):
            if path.is_file():
                store.put(f"backup/{path.relative_to(tmp_path / 'log')}", path.read_bytes())
        given = [cluster.master, store.conf, f"{store.address}/backup"]
        command = [sys.executable, "-c", PROGRAM, json.dumps(given)]
        job = subprocess.run(command, capture_output=True, text=True, timeout=scaled(240.0))
    assert job.returncode == 0, job.stderr
    assert json.loads(job.stdout) == [100_000, *range(120)]
