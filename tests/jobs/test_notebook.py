"""The cells of docs/spark.ipynb run, in the folder of a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from regent.core.model import TopicPartition
from tests.jobs.journals import GeneratedHistory, write_journals
from tests.jobs.source.log_files import write_log

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parent.parent.parent / "docs" / "spark.ipynb"


def test_the_cells_of_the_notebook_run_in_their_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    write_journals(tmp_path / "data", tuple(GeneratedHistory(11).events(3, 40)))
    for broker in range(3):
        write_log(tmp_path / "data" / f"broker-{broker}" / "log", TopicPartition("t", 0), 7)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [], "a committed notebook has no outputs"
                exec("".join(cell["source"]), names)
        assert spark.table("failovers").count() > 0
        assert spark.table("placed_orders").count() == 1050
    finally:
        if (live := names.get("live")) is not None:
            live.stop()
        spark.sql("DROP TABLE IF EXISTS placed_orders")
        spark.catalog.dropTempView("failovers")
    shown = capsys.readouterr().out
    assert "|     0|  775|" in shown, "the replicas of broker 0"
    assert "|    t|       7|" in shown, "the records of a topic"
