"""The assignment that a job reads: from ZooKeeper, or from files of four kinds.

``zookeeper`` is the running cluster. A path is a Kafka reassignment document, a JSON list of the
same rows (as ``regent topics describe -o json`` prints it), JSON lines, or Parquet; the last two
may be directories, such as ``regent jobs place`` writes. Columns that are not needed are ignored.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
import orjson
import pyarrow
import pyarrow.json
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from regent.core.errors import BadDataError, RegentError
from regent.core.model import LeaderIsrAndControllerEpoch, ReplicaAssignment, TopicPartition
from regent.jobs.command import InputError, cluster_admin
from regent.jobs.local_files import path_to_read
from regent.zk.stores.admin_store import ZkAdminStore

ZOOKEEPER: Final = "zookeeper"

_COLUMNS: Final = {
    "topic": "string",
    "partition": "int",
    "replicas": "array<int>",
    "leader": "int",
    "isr": "array<int>",
}
_REQUIRED: Final = ("topic", "partition", "replicas")
_DDL: Final = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
_INT: Final = pyarrow.int32()
_ROW: Final = pyarrow.schema(
    [
        ("topic", pyarrow.string()),
        ("partition", _INT),
        ("replicas", pyarrow.list_(_INT)),
        ("leader", _INT),
        ("isr", pyarrow.list_(_INT)),
    ]
)
_PAIRS: Final = combinations(range(4), 2)
_HAS_TWO_ON_A_BROKER: Final = f"""
  CASE WHEN size(replicas) > 4 THEN size(array_distinct(replicas)) <> size(replicas)
  ELSE coalesce({" OR ".join(f"get(replicas, {i}) = get(replicas, {j})" for i, j in _PAIRS)}, false)
  END"""
IS_SOUND: Final = f"""coalesce(
  topic IS NOT NULL AND partition >= 0 AND array_min(replicas) >= 0
  AND NOT array_contains(replicas, -1)  -- which is NULL if a replica is
  AND NOT ({_HAS_TWO_ON_A_BROKER}), false)"""
"""SQL that is true for a valid row; without lambdas, which Spark does not compile."""

_FIRST_LINE_BYTES: Final = 1 << 20
_MAX_DOCUMENT_BYTES: Final = 2**31 - 1024  # the limit of the parser
_SMALL_BYTES: Final = 16 << 20  # a million partitions in Parquet, a quarter of that in JSON
_TOPICS_AT_ONCE: Final = 500
_ROWS_PER_FILE: Final = 500_000


class ReassignmentInProgressError(RegentError):
    """Partitions are being reassigned already; the message names some."""


class _Kind(Enum):
    ZOOKEEPER = "zookeeper"
    ROWS = "rows"  # read already
    JSON_LINES = "json lines"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class AssignmentSource:
    """An existing source of an assignment; ``where`` is its name in messages."""

    where: str
    _kind: _Kind
    _location: str  # an address, or a URI
    _rows: pyarrow.Table | None = None
    _schema: pyarrow.Schema | None = None  # of Parquet
    _bytes: int = 0

    @property
    def is_small(self) -> bool:
        """Whether a quick start of Spark saves more than compiled code; False for a cluster."""
        return self._bytes < _SMALL_BYTES

    @classmethod
    def of(cls, text: str, zookeeper_address: Callable[[], str]) -> AssignmentSource:
        """Find the source that ``text`` names, without Spark; call ``zookeeper_address`` if needed.

        A reassignment document is read at once.

        Raises:
            InputError: it does not exist, or has no assignment.
        """
        if text == ZOOKEEPER:
            address = zookeeper_address()
            return cls(address, _Kind.ZOOKEEPER, address)
        path = Path(text)
        if not path.exists():
            raise InputError(f"{text}: no such file or directory (nor {ZOOKEEPER})")
        try:
            source = cls._of_directory(path) if path.is_dir() else cls._of_file(path)
            return replace(source, _bytes=_size(path))
        except OSError as error:
            raise InputError(f"{text} cannot be read: {error.strerror or error}") from None

    @classmethod
    def _of_file(cls, path: Path) -> AssignmentSource:
        uri = path_to_read(path)
        with path.open("rb") as file:
            first_line = file.readline(_FIRST_LINE_BYTES).strip()
        if first_line.startswith(b"PAR1"):
            return cls(str(path), _Kind.PARQUET, uri, _schema=_parquet_schema(path))
        if _is_row(first_line):
            return cls(str(path), _Kind.JSON_LINES, uri)
        return cls(str(path), _Kind.ROWS, uri, _read_document(path))

    @classmethod
    def _of_directory(cls, path: Path) -> AssignmentSource:
        files = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] not in "._")
        if not files:
            raise InputError(f"{path} has no files to read an assignment from")
        if len(files) == 1:
            return cls._of_file(files[0])
        suffixes = {file.suffix for file in files}
        uri = path_to_read(path)
        if suffixes == {".parquet"}:
            return cls(str(path), _Kind.PARQUET, uri, _schema=_parquet_schema(files[0]))
        if suffixes <= {".json", ".jsonl"} and any(cls._is_json_lines(file) for file in files):
            return cls(str(path), _Kind.JSON_LINES, uri)
        raise InputError(f"{path} has other files than one assignment: name the file to read")

    @staticmethod
    def _is_json_lines(path: Path) -> bool:
        with path.open("rb") as file:
            return _is_row(file.readline(_FIRST_LINE_BYTES).strip())


def assignment_frame(
    spark: SparkSession, source: AssignmentSource, *, refuse_moving: bool = False
) -> DataFrame:
    """Return one row for each partition, in no particular order.

    Columns: topic string, partition int, replicas array<int>, leader int and isr array<int>, the
    last two null where the source does not have them. ``leader`` is -1 when there is none. While a
    partition is being reassigned its replicas are the old and the new ones; with ``refuse_moving``
    that is an error. Topics that are being deleted are left out.

    Invalid lines have nulls: see ``check_assignment``.

    Raises:
        InputError, BadDataError, SessionExpiredError: ZooKeeper cannot be read.
        ReassignmentInProgressError
    """
    match source._kind:
        case _Kind.PARQUET:
            # With the schema, Spark starts no job to infer it.
            frame = spark.read.schema(from_arrow_schema(source._schema)).parquet(source._location)
        case _Kind.JSON_LINES:
            frame = spark.read.schema(_DDL).json(source._location)
        case _Kind.ROWS:
            assert source._rows is not None
            frame = _parquet_frame(spark, source._rows.to_batches(_ROWS_PER_FILE))
        case _Kind.ZOOKEEPER:
            with cluster_admin(source._location) as admin:
                frame = _parquet_frame(spark, _read_cluster(admin, refuse_moving=refuse_moving))
    return frame.select(
        *(
            (F.col(name) if name in frame.columns else F.lit(None)).cast(kind).alias(name)
            for name, kind in _COLUMNS.items()
        )
    )


def check_assignment(frame: DataFrame, where: str) -> None:
    """Raise ``InputError`` for an invalid assignment; runs a job.

    It is invalid if it is empty, lists a partition twice, or has a partition without replicas or
    with invalid ones.
    """
    found = frame.agg(F.count("*"), F.expr(f"count_if(NOT {IS_SOUND})")).first()
    assert found is not None
    check_counted(frame, where, *found)


def check_counted(frame: DataFrame, where: str, partitions: int, unsound: int) -> None:
    """As ``check_assignment``, with the counts of rows and of invalid rows."""
    if not partitions:
        raise InputError(f"{where} has no partitions")
    if unsound:
        raise InputError(f"{where}: {_complaint(frame)}")
    twice = _partition_listed_twice(frame)
    if twice is not None:
        raise InputError(f"{where}: {twice} is listed more than once")


def _complaint(frame: DataFrame) -> str:
    name = F.concat_ws("-", "topic", "partition")
    replicas = F.coalesce(F.size("replicas"), F.lit(0))
    is_row = F.col("topic").isNotNull() & F.col("partition").isNotNull()
    is_id = F.coalesce(F.forall("replicas", lambda b: b >= 0), F.lit(False))
    problem = (
        F.when(~is_row, F.lit("has an entry without a topic or a partition"))
        .when(F.col("partition") < 0, F.concat(name, F.lit(": a partition cannot be negative")))
        .when(replicas <= 0, F.concat(name, F.lit(" has no replicas")))
        .when(~is_id, F.concat(name, F.lit(" has a replica that is not a broker id")))
        .otherwise(F.concat(name, F.lit(" has two replicas on one broker")))
    )
    first = frame.filter(f"NOT {IS_SOUND}").agg(F.min(problem)).first()
    assert first is not None
    return str(first[0])


def _partition_listed_twice(frame: DataFrame) -> str | None:
    # Ten million hashes sort in a second; grouping as many names takes ten. Only when two hashes
    # are the same are names compared.
    hashed = frame.select(F.xxhash64("topic", "partition").alias("hash"))
    hashes = np.sort(hashed.toArrow()["hash"].to_numpy())
    same = hashes[1:][hashes[1:] == hashes[:-1]]
    if not len(same):
        return None
    suspect = F.xxhash64("topic", "partition") == F.lit(int(same[0]))
    rows = frame.filter(suspect).groupBy("topic", "partition").count().filter("count > 1").take(1)
    return f"{rows[0]['topic']}-{rows[0]['partition']}" if rows else None


# --- files ----------------------------------------------------------------------------------------


def _size(path: Path) -> int:
    files = [path] if path.is_file() else list(path.iterdir())
    return sum(file.stat().st_size for file in files)


def _is_row(line: bytes) -> bool:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and "topic" in row


def _parquet_schema(path: Path) -> pyarrow.Schema:
    try:
        schema = pyarrow.parquet.read_schema(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path} is not Parquet: {_first_line(error)}") from None
    missing = [name for name in _REQUIRED if name not in schema.names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]}: it has {', '.join(schema.names)}")
    return pyarrow.schema([schema.field(name) for name in _COLUMNS if name in schema.names])


def _read_document(path: Path) -> pyarrow.Table:
    if path.stat().st_size > _MAX_DOCUMENT_BYTES:
        raise InputError(f"{path} is larger than 2 GB: use JSON lines or Parquet")
    data = path.read_bytes().strip()
    if data.startswith(b"["):
        data = b'{"version":1,"partitions":' + data + b"}"
    schema = pyarrow.schema(
        [("partitions", pyarrow.list_(pyarrow.struct(list(_ROW)))), ("version", pyarrow.int64())]
    )
    try:
        documents = pyarrow.json.read_json(
            pyarrow.BufferReader(data),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema,
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path} is no assignment: {_first_line(error)}") from None
    partitions = documents["partitions"].combine_chunks()
    if len(documents) != 1 or partitions.null_count:
        raise InputError(f"{path} is no assignment: it must be one object with partitions")
    if documents["version"][0].as_py() != 1:
        raise InputError(f'{path} is no assignment: it must have "version": 1')
    return pyarrow.Table.from_struct_array(partitions.flatten())


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# --- ZooKeeper ------------------------------------------------------------------------------------


def _read_cluster(admin: ZkAdminStore, *, refuse_moving: bool) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of the cluster's topics, in batches."""
    deleted = admin.topics.read_topics_being_deleted()
    names = [name for name in admin.topics.read_topic_names() if name not in deleted]
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        assignments = _read_topics(admin, names[first : first + _TOPICS_AT_ONCE])
        if refuse_moving:
            _refuse_moving(assignments)
        states = admin.read_partition_states(list(assignments))
        columns: list[list[object]] = [[], [], [], [], []]
        for partition, assignment in assignments.items():
            state = states.get(partition)
            leader, isr = None, None
            if isinstance(state, LeaderIsrAndControllerEpoch):
                leader, isr = state.leader_and_isr.leader, list(state.leader_and_isr.isr)
            row = (*partition, list(assignment.replicas), leader, isr)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(c, f.type) for c, f in zip(columns, _ROW, strict=True)], schema=_ROW
        )


def _read_topics(
    admin: ZkAdminStore, names: Sequence[str]
) -> dict[TopicPartition, ReplicaAssignment]:
    assignments = {}
    for topic, found in admin.topics.read_topics(names).items():
        if isinstance(found, BadDataError):
            raise found
        for partition, assignment in found.partitions.items():
            assignments[TopicPartition(topic, partition)] = assignment
    return assignments


def _refuse_moving(assignments: dict[TopicPartition, ReplicaAssignment]) -> None:
    moving = [str(p) for p, a in assignments.items() if a.is_being_reassigned]
    if moving:
        more = ", …" if len(moving) > 3 else ""
        raise ReassignmentInProgressError(
            f"partitions are being reassigned already ({', '.join(moving[:3])}{more}): wait for"
            " it to complete, or cancel it"
        )


# --- to Spark -------------------------------------------------------------------------------------


def _parquet_frame(
    spark: SparkSession, batches: Iterator[pyarrow.RecordBatch] | Sequence[pyarrow.RecordBatch]
) -> DataFrame:
    """Give rows to Spark as Parquet files, which is ten times faster than as rows.

    The files are deleted with the session. Workers on other machines need access to them.
    """
    parent = spark.sparkContext._temp_dir  # PySpark puts such files there too
    directory = Path(tempfile.mkdtemp(prefix="assignment-", dir=parent))
    try:
        for number, batch in enumerate(batches):
            table = pyarrow.Table.from_batches([batch], _ROW)
            pyarrow.parquet.write_table(table, directory / f"part-{number:05d}.parquet")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return spark.read.schema(_DDL).parquet(path_to_read(directory))
