"""Tables that executors write are complete, also when a task dies; or there is none."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from regent.jobs import place, report_events
from regent.jobs.command import InputError
from regent.jobs.files import JobFiles
from regent.jobs.new_directory import new_table
from regent.jobs.tables import Batches, mapped, new_catalog_table, write_files
from regent.testing.waits import eventually, scaled
from tests.jobs.journals import GeneratedHistory, write_journals
from tests.jobs.local_files import LOCAL_FILES

pytestmark = pytest.mark.spark

ROWS = 10


def numbers_after(marker: Path, batches: Batches) -> Batches:
    """Yield the rows; the first task that has done so kills its process."""
    yield from batches
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def endless(marker: Path, batches: Batches) -> Batches:
    for batch in batches:
        yield batch
        marker.touch()
        signal.pause()


def failing(batches: Batches) -> Batches:
    yield from batches
    raise ValueError("no more numbers")


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_the_rows_of_a_task_that_is_killed_and_runs_again_are_there_once(
    spark: SparkSession, tmp_path: Path, file_format: str
):
    out, function = tmp_path / "out", partial(numbers_after, tmp_path / "marker")
    table = mapped(spark.range(0, ROWS, 1, 3), function, "id long")
    with new_table(str(out), LOCAL_FILES) as location:
        write_files(table, location, file_format)
    assert (tmp_path / "marker").exists()
    assert (out / "_SUCCESS").exists()
    written = spark.read.format(file_format).load(str(out)).toArrow()["id"].to_pylist()
    assert sorted(written) == list(range(ROWS))


def test_an_interrupted_write_ends_its_tasks_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
):
    marker = tmp_path / "marker"
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as jobs do
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))

    def interrupt() -> None:
        eventually(marker.exists, "a task has begun", scaled(40))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    table = mapped(spark.range(0, ROWS, 1, 2), partial(endless, marker), "id long")
    with pytest.raises(KeyboardInterrupt), new_table(str(tmp_path / "out"), LOCAL_FILES) as out:
        write_files(table, out, "parquet")
    interrupter.join(scaled(10))
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert list(tmp_path.iterdir()) == [marker]


def test_a_write_that_fails_names_the_reason_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path
):
    table = mapped(spark.range(0, ROWS, 1, 2), failing, "id long")
    with (
        pytest.raises(PySparkException, match="no more numbers"),
        new_table(str(tmp_path / "out"), LOCAL_FILES) as out,
    ):
        write_files(table, out, "parquet")
    assert list(tmp_path.iterdir()) == []


def test_rows_of_the_same_key_are_in_a_folder(spark: SparkSession, tmp_path: Path):
    table = spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 2 AS odd")
    write_files(table, str(tmp_path / "out"), "parquet", partition_by=["odd"])
    read = pa.parquet.read_table(tmp_path / "out" / "odd=1")
    assert sorted(read["id"].to_pylist()) == list(range(1, ROWS, 2))


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A database of the session's catalog whose tables are in ``tmp_path / "warehouse"``."""
    spark.sql(f"CREATE DATABASE plans LOCATION '{tmp_path / 'warehouse'}'")
    yield "plans"
    spark.sql("DROP DATABASE plans CASCADE")


def test_a_placement_is_a_new_table_of_the_catalog(
    spark: SparkSession, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "topics.json").write_text(
        '[{"topic": "t", "partitions": 6, "replication_factor": 2}]'
    )
    (tmp_path / "brokers.json").write_text("[1, 2, 3]")
    files = ["--topics", f"{tmp_path}/topics.json", "--brokers", f"{tmp_path}/brokers.json"]
    name = f"spark_catalog.{database}.placed"
    assert place.main([*files, "--table", name, "--dry-run"], spark) == 0
    assert place.main([*files, "--table", name], spark) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["table"] == name
    found = spark.table(name)
    assert found.columns == ["topic", "partition", "replicas"]
    placed = [("t", p, [1 + p % 3, 1 + (p + 1) % 3]) for p in range(6)]
    assert sorted(map(tuple, found.collect())) == placed
    assert (tmp_path / "warehouse" / "placed" / "_SUCCESS").exists()

    refusals = {
        name: f"table {name} exists already: choose a new name for --table",
        "placed": "table placed would be removed with the session of this job: name a directory",
        "nowhere.placed": "nowhere",
        "nowhere.plans.placed": "nowhere",
        "a b": "table a b: ",
        "": "table : ",
    }
    for table, why in refusals.items():
        assert place.main([*files, "--table", table], spark) == 2
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
    for other in (["--out", str(tmp_path / "out")], ["--format", "jsonl"]):
        assert place.main([*files, "--table", "plans.other", *other], spark) == 2
        assert "--table NAME stands alone" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_events_are_a_table_of_the_catalog_or_there_is_none(
    spark: SparkSession, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    written = tuple(GeneratedHistory(11).events(2, 20))
    write_journals(tmp_path / "cluster", written)
    journals, table = ["--data-dir", str(tmp_path / "cluster")], f"{database}.events"
    none = [*journals, "--until", "2001-01-01", "--table", table]
    assert report_events.main(none, spark) == 1
    assert "no events of that time" in capsys.readouterr().err
    assert not spark.catalog.tableExists(table)
    assert report_events.main([*journals, "--table", table, "-o", "json"], spark) == 0
    assert json.loads(capsys.readouterr().out)["table"] == table
    assert spark.table(table).count() == len(written)
    assert list((tmp_path / "warehouse" / "events").glob("controller_epoch=*"))
    assert report_events.main([*journals, "--table", table, "--out", "o"], spark) == 2
    assert "choose one of --out DIR and --table NAME" in capsys.readouterr().err


def test_a_table_that_could_not_be_written_can_be_written_again(
    spark: SparkSession, database: str, tmp_path: Path
):
    name, files = f"{database}.Numbers", JobFiles(lambda: spark)
    broken = mapped(spark.range(0, ROWS, 1, 2), failing, "id long")
    with (
        pytest.raises(PySparkException, match="no more numbers"),
        new_catalog_table(spark, name, files) as write,
    ):
        write(broken)
    left = tmp_path / "warehouse" / "numbers" / "part-0"
    left.parent.mkdir()
    left.touch()
    with (
        pytest.raises(InputError, match=r"is not empty .*: remove it, or choose a new name"),
        new_catalog_table(spark, name, files),
    ):
        pass
    left.unlink()
    with new_catalog_table(spark, name, files) as write:
        write(spark.range(ROWS))
    assert spark.table(name).count() == ROWS
    with pytest.raises(InputError, match="exists already"), new_catalog_table(spark, name, files):
        pass
    assert spark.table(name).count() == ROWS
