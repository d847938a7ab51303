"""Tables that executors write are complete, also when a task dies; or there is none."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from regent.jobs.new_directory import new_table
from regent.jobs.tables import Batches, mapped, write_table
from regent.testing.waits import eventually, scaled
from tests.jobs.local_files import LOCAL_FILES

pytestmark = pytest.mark.spark

ROWS = 10


def numbers_after(marker: Path, found: Accumulator[int], batches: Batches) -> Batches:
    """Yield the rows; the first task that has done so kills its process."""
    for batch in batches:
        found.add(batch.num_rows)
        yield batch
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
def test_a_task_that_is_killed_and_runs_again_counts_once(
    spark: SparkSession, tmp_path: Path, file_format: str
):
    found, out = spark.sparkContext.accumulator(0), tmp_path / "out"
    function = partial(numbers_after, tmp_path / "marker", found)
    table = mapped(spark.range(0, ROWS, 1, 3), function, "id long")
    with new_table(str(out), LOCAL_FILES) as location:
        write_table(table, location, file_format)
    assert (tmp_path / "marker").exists()
    assert (out / "_SUCCESS").exists()
    written = spark.read.format(file_format).load(str(out)).toArrow()["id"].to_pylist()
    assert sorted(written) == list(range(ROWS))
    assert found.value == ROWS


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
        write_table(table, out, "parquet")
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
        write_table(table, out, "parquet")
    assert list(tmp_path.iterdir()) == []


def test_rows_of_the_same_key_are_in_a_folder(spark: SparkSession, tmp_path: Path):
    table = spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 2 AS odd")
    write_table(table, str(tmp_path / "out"), "parquet", partition_by=["odd"])
    read = pa.parquet.read_table(tmp_path / "out" / "odd=1")
    assert sorted(read["id"].to_pylist()) == list(range(1, ROWS, 2))
