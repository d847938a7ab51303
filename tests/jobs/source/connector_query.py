"""Spark's own Kafka connector as its users start it: ``python -m … VERSION BROKERS CHECKPOINT``.

Writes rows into the topic ``connector-in``, copies them by a stream into ``connector-out``, twice:
the second query begins at the checkpoint of the first. Then reads the copy.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from pyspark.sql import SparkSession

from regent.testing.waits import scaled

_PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_INCLUDED: Final = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
)
_SETTINGS: Final[dict[str, bool | float | int | str | None]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.jars.excludes": ",".join(_INCLUDED),  # they are in the wheel of PySpark
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
TIMEOUT_S: Final = 60


def main(version: str, brokers: str, checkpoint: str) -> None:
    """Run it, and print how many rows each query has seen."""
    builder = SparkSession.builder.master("local[2]").config(map=_SETTINGS)
    spark = builder.config("spark.jars.packages", f"{_PACKAGE}:{version}").getOrCreate()
    servers = {"kafka.bootstrap.servers": brokers}
    counts = []
    for first in (0, 100):
        rows = spark.range(first, first + 100)
        rows = rows.selectExpr("cast(id as string) as key", "concat('value-', id) as value")
        rows.write.format("kafka").options(**servers, topic="connector-in").save()
        reader = spark.readStream.format("kafka").options(**servers, subscribe="connector-in")
        stream = reader.option("startingOffsets", "earliest").load().select("key", "value")
        sink = stream.writeStream.format("kafka").options(**servers, topic="connector-out")
        sink = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = sink.start()
        assert query.awaitTermination(round(scaled(TIMEOUT_S)))
        counts.append(sum(int(p["numInputRows"]) for p in query.recentProgress))
    copy = spark.read.format("kafka").options(**servers, subscribe="connector-out").load()
    sys.stdout.write(json.dumps({"copied": counts, "read": copy.count()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
