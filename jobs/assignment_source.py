"""The assignment that a job reads: from ZooKeeper, or from files of four kinds.

``zookeeper`` is the running cluster. A path is a Kafka reassignment document, a JSON list of the
same rows (as ``regent topics describe -o json`` prints it), JSON lines, or Parquet; the last two
may be directories, such as ``regent jobs place`` writes. Columns that are not needed are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import orjson
import pyarrow
import pyarrow.json
import pyarrow.parquet
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from regent.core.errors import BadDataError, RegentError
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.jobs.command import InputError, cluster_admin
from regent.jobs.files import Entry, JobFiles, is_remote, local_path, path_to_read
from regent.jobs.java_errors import explanation
from regent.jobs.json_list import Fields, problem_of_line
from regent.jobs.session import is_local
from regent.zk.stores.admin_store import ZkAdminStore

ZOOKEEPER: Final = "zookeeper"

_INT: Final = pyarrow.int32()
_REQUIRED: Final = {
    "topic": pyarrow.string(),
    "partition": _INT,
    "replicas": pyarrow.list_(_INT),
}
_ROW: Final = pyarrow.schema(
    {
        **_REQUIRED,
        "leader": _INT,
        "isr": pyarrow.list_(_INT),
        "adding_replicas": pyarrow.list_(_INT),
        "removing_replicas": pyarrow.list_(_INT),
        "min_isr": _INT,
    }
)
_STRUCT: Final = pyarrow.struct(list(_ROW))
PROBLEM: Final = """CASE
  WHEN topic IS NULL OR partition IS NULL THEN 'has an entry without a topic or a partition'
  WHEN partition < 0 THEN concat(topic, '-', partition, ': a partition cannot be negative')
  WHEN coalesce(size(replicas), 0) <= 0 THEN concat(topic, '-', partition, ' has no replicas')
  WHEN coalesce(array_min(replicas) < 0 OR array_contains(replicas, -1), true)  -- NULL if one is
    THEN concat(topic, '-', partition, ' has a replica that is not a broker id')
  WHEN size(array_distinct(replicas)) < size(replicas)
    THEN concat(topic, '-', partition, ' has two replicas on one broker')
END"""
"""SQL for what is wrong with a row, NULL if nothing is; without lambdas: Spark compiles none."""

_IS_MOVING: Final = "size(adding_replicas) > 0 OR size(removing_replicas) > 0"

_FIRST_LINE_BYTES: Final = 1 << 20
_MAX_DOCUMENT_BYTES: Final = 2**31 - 1024  # the limit of the parser
_SMALL_BYTES: Final = 16 << 20  # a million partitions in Parquet, a quarter of that in JSON
_TOPICS_AT_ONCE: Final = 500
_SUSPECTS: Final = 100
_NAMED: Final = 3

_FIELDS: Final[Fields] = {
    "topic": lambda value: type(value) is str,
    "partition": lambda value: type(value) is int and value >= 0,
    "replicas": lambda value: isinstance(value, list) and value != [],
}

Load: TypeAlias = Callable[[SparkSession], DataFrame]


class ReassignmentInProgressError(RegentError):
    """Partitions are being reassigned already; the message names some."""


@dataclass(frozen=True, slots=True)
class AssignmentSource:
    """An existing source of an assignment; ``where`` is its name in messages."""

    where: str
    is_small: bool
    """Whether a quick start of Spark saves more than compiled code."""
    load: Load | None  # None: from the cluster at the address ``where``
    bad_line: Callable[[], str | None] = lambda: None
    """Finds the first line of its files that is no row of an assignment."""

    @classmethod
    def of(
        cls, text: str, zookeeper_address: Callable[[], str], files: JobFiles
    ) -> AssignmentSource:
        """Find the source that ``text`` names; call ``zookeeper_address`` if needed.

        A reassignment document is read at once.

        Raises:
            InputError: it does not exist, or has no assignment.
        """
        if text == ZOOKEEPER:
            return cls(zookeeper_address(), is_small=True, load=None)
        entry = files.entry(text)
        if entry is None:
            raise InputError(f"{text}: no such file or directory (nor {ZOOKEEPER})")
        found = [entry]
        if entry.is_directory:
            inside = files.entries(text)
            found = [e for e in inside if not e.is_directory and e.name[0] not in "._"]
        if not found:
            raise InputError(f"{text} has no files to read an assignment from")
        is_small = sum(each.size for each in found) < _SMALL_BYTES
        bad_line = partial(_first_bad_line, found, files)
        return cls(text, is_small, _files_to_load(text, found, files), bad_line)


def assignment_frame(spark: SparkSession, source: AssignmentSource) -> DataFrame:
    """Return one row for each partition, in no particular order.

    Columns: topic string, partition int, replicas array<int>, leader int, isr array<int>,
    adding_replicas and removing_replicas array<int>, and min_isr int, the last five null where the
    source does not have them. ``leader`` is -1 when there is none. While a partition is being
    reassigned its replicas are the old and the new ones. ``min_isr`` is ``min.insync.replicas``
    where ZooKeeper has it: of the topic, or the default of all brokers. Topics that are being
    deleted are left out.

    Invalid lines have nulls: see ``check_assignment``.

    Raises:
        InputError, BadDataError, SessionExpiredError: ZooKeeper cannot be read.
    """
    if source.load is not None:
        frame = source.load(spark)
    else:
        with cluster_admin(source.where) as admin:
            frame = spark.createDataFrame(pyarrow.Table.from_batches(_read_cluster(admin), _ROW))
    missing = {name: F.lit(None) for name in _ROW.names if name not in frame.columns}
    wanted = from_arrow_schema(_ROW)
    return frame.withColumns(missing).select(
        *(F.col(field.name).try_cast(field.dataType).alias(field.name) for field in wanted)
    )


def check_assignment(
    frame: DataFrame, source: AssignmentSource, *, refuse_moving: bool = False
) -> None:
    """Raise ``InputError`` for an invalid assignment; runs a job.

    It is invalid if it is empty, lists a partition twice, or has a partition without replicas or
    with invalid ones. Partitions that are being reassigned raise ``ReassignmentInProgressError``
    with ``refuse_moving``.
    """
    where = source.where
    totals = F.count("*"), F.count(F.expr(PROBLEM)), F.count_if(F.expr(_IS_MOVING))
    found = frame.agg(*totals).first()
    assert found is not None
    partitions, unsound, moving = found
    if not partitions:
        raise InputError(f"{where} has no partitions")
    if unsound:
        if (line := source.bad_line()) is not None:
            raise InputError(line)
        [problem] = frame.agg(F.min(F.expr(PROBLEM))).collect()[0]
        raise InputError(f"{where}: {problem}")
    twice = _partition_listed_twice(frame)
    if twice is not None:
        raise InputError(f"{where}: {twice} is listed more than once")
    if moving and refuse_moving:
        rows = frame.filter(_IS_MOVING).orderBy("topic", "partition").take(_NAMED)
        names = [f"{row['topic']}-{row['partition']}" for row in rows]
        raise ReassignmentInProgressError(
            "partitions are being reassigned already"
            f" ({', '.join([*names, '…'] if moving > _NAMED else names)}): wait for it to complete,"
            f" or cancel it{f', and write {where} anew' if source.load is not None else ''}"
        )


def held_by_broker(frame: DataFrame) -> dict[BrokerId, tuple[int, int]]:
    """Count the replicas and the preferred leaderships of each broker that has some."""
    table = (
        frame.select(F.posexplode("replicas").alias("position", "broker"))
        .groupBy("broker")
        .agg(F.count("*").alias("replicas"), F.count_if(F.col("position") == 0).alias("leaders"))
        .toArrow()
    )
    return {row["broker"]: (row["replicas"], row["leaders"]) for row in table.to_pylist()}


def _partition_listed_twice(frame: DataFrame) -> str | None:
    # Hashes are counted much faster than names. Only when two hashes are equal are names compared.
    hashed = F.xxhash64("topic", "partition")
    twice = frame.groupBy(hashed.alias("hash")).count().filter("count > 1").limit(_SUSPECTS)
    suspects = [row["hash"] for row in twice.collect()]
    if not suspects:
        return None
    by_name = frame.filter(hashed.isin(suspects)).groupBy("topic", "partition").count()
    rows = by_name.filter("count > 1").orderBy("topic", "partition").take(1)
    return f"{rows[0]['topic']}-{rows[0]['partition']}" if rows else None


# --- files ----------------------------------------------------------------------------------------


def _files_to_load(text: str, found: Sequence[Entry], files: JobFiles) -> Load:
    """Return what loads the files of a source, by their kind."""
    suffixes = {Path(entry.name.removesuffix(".gz")).suffix for entry in found}
    locations = [entry.location for entry in found]
    heads = (files.head(entry, _FIRST_LINE_BYTES) for entry in found)
    if suffixes == {".parquet"} or (len(found) == 1 and files.head(found[0], 4) == b"PAR1"):
        schema = None if is_remote(text) else _parquet_schema(local_path(locations[0]))
        return partial(_load_files, text, locations, schema, is_parquet=True)
    may_be_lines = len(found) == 1 or suffixes <= {".json", ".jsonl"}
    if may_be_lines and any(map(_begins_with_row, heads)):
        return partial(_load_files, text, locations, _ROW, is_parquet=False)
    if len(found) > 1:
        raise InputError(f"{text} has other files than one assignment: name the file to read")
    table = _read_document(found[0], files)
    return lambda spark: spark.createDataFrame(table)


def _begins_with_row(head: bytes) -> bool:
    try:
        row = orjson.loads(head.lstrip().partition(b"\n")[0])
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and "topic" in row


def _load_files(
    text: str,
    locations: Sequence[str],
    schema: pyarrow.Schema | None,
    spark: SparkSession,
    *,
    is_parquet: bool,
) -> DataFrame:
    """Load JSON lines or Parquet; with a schema Spark starts no job to infer it."""
    if not (is_remote(text) or is_local(spark)):
        return spark.createDataFrame(_read_here(locations, schema, is_parquet=is_parquet))
    path = path_to_read(text if len(locations) > 1 else locations[0])
    reader = spark.read if schema is None else spark.read.schema(from_arrow_schema(schema))
    if not is_parquet:
        return reader.json(path)
    try:
        frame = reader.parquet(path)
    except (PySparkException, Py4JJavaError) as error:
        raise InputError(f"{text} is not Parquet: {explanation(error)}") from None
    _check_columns(text, to_arrow_schema(frame.schema))
    return frame


def _read_here(
    locations: Sequence[str], schema: pyarrow.Schema | None, *, is_parquet: bool
) -> pyarrow.Table:
    """Read files on the driver, because executors do not see its disk."""
    assert schema is not None
    paths = [local_path(location) for location in locations]
    if is_parquet:
        tables = [pyarrow.parquet.read_table(path, columns=schema.names) for path in paths]
    else:
        tables = [_read_json(path, path, schema) for path in paths]
    return pyarrow.concat_tables(tables)


def _parquet_schema(path: Path) -> pyarrow.Schema:
    try:
        schema = pyarrow.parquet.read_schema(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path} is not Parquet: {_first_line(error)}") from None
    _check_columns(str(path), schema)
    return pyarrow.schema([schema.field(name) for name in _ROW.names if name in schema.names])


def _check_columns(where: str, schema: pyarrow.Schema) -> None:
    for name in _ROW.names:
        if name not in schema.names:
            if name in _REQUIRED:
                columns = ", ".join(schema.names)
                raise InputError(f"{where} has no column {name}: it has {columns}")
            continue
        found, wanted = schema.field(name).type, _ROW.field(name).type
        if not _is_like(found, wanted):
            raise InputError(f"{where}: column {name} is {found}, which must be {wanted}")


def _is_like(found: pyarrow.DataType, wanted: pyarrow.DataType) -> bool:
    """Whether values of a type can be those of another: any whole numbers, any strings."""
    types = pyarrow.types
    if types.is_list(wanted):
        is_list = types.is_list(found) or types.is_large_list(found)
        return bool(is_list) and _is_like(found.value_type, wanted.value_type)
    if types.is_integer(wanted):
        return bool(types.is_integer(found))
    return bool(types.is_string(found) or types.is_large_string(found))


def _read_document(entry: Entry, files: JobFiles) -> pyarrow.Table:
    where = entry.location
    if entry.size > _MAX_DOCUMENT_BYTES:
        raise InputError(f"{where} is larger than 2 GB: use JSON lines or Parquet")
    data = files.read(where).strip()
    if not data:
        raise InputError(f"{where} is no assignment: it is empty")
    if not data.startswith((b"{", b"[")):  # Arrow crashes when it reads `null` first
        _check_is_json(data, where)
        raise InputError(f"{where} is no assignment: it must be one object with partitions")
    if data.startswith(b"["):
        data = b'{"version":1,"partitions":' + data + b"}"
    schema = pyarrow.schema({"partitions": pyarrow.list_(_STRUCT), "version": pyarrow.int64()})
    whole = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        documents = _read_json(where, pyarrow.BufferReader(data), schema, whole)
    except InputError:
        _check_is_json(data, where)
        raise
    partitions = documents["partitions"].combine_chunks()
    if len(documents) != 1 or partitions.null_count:
        raise InputError(f"{where} is no assignment: it must be one object with partitions")
    if documents["version"][0].as_py() != 1:
        raise InputError(f'{where} is no assignment: it must have "version": 1')
    rows = partitions.flatten()
    if rows.null_count:
        raise InputError(f"{where} is no assignment: an entry of partitions is null")
    return pyarrow.Table.from_struct_array(rows)


def _read_json(
    where: object,
    file: Path | pyarrow.BufferReader,
    schema: pyarrow.Schema,
    whole: pyarrow.json.ReadOptions | None = None,
) -> pyarrow.Table:
    """Read JSON lines, or with ``whole`` objects in any layout."""
    options = pyarrow.json.ParseOptions(
        explicit_schema=schema,
        newlines_in_values=whole is not None,
        unexpected_field_behavior="ignore",
    )
    try:
        table = pyarrow.json.read_json(file, whole, options)
        table.validate(full=True)  # texts are UTF-8
        return table
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{where} is no assignment: {_first_line(error)}") from None


def _check_is_json(data: bytes, where: str) -> None:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{where} is no assignment: it is not JSON: {error}") from None


def _first_bad_line(found: Sequence[Entry], files: JobFiles) -> str | None:
    """Return the name of the first line that is no row, and the reason; None if there is none."""
    if not any(_begins_with_row(files.head(entry, _FIRST_LINE_BYTES)) for entry in found):
        return None  # no JSON lines
    for entry in found:
        if entry.size > _MAX_DOCUMENT_BYTES:
            continue
        for number, line in enumerate(files.read(entry.location).splitlines(), 1):
            if line.strip() and (problem := problem_of_line(line, _FIELDS)) is not None:
                return f"{entry.location}: line {number} {problem}"
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# --- ZooKeeper ------------------------------------------------------------------------------------


def _read_cluster(admin: ZkAdminStore) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of the cluster's topics, in batches."""
    deleted = admin.topics.read_topics_being_deleted()
    names = [name for name in admin.topics.read_topic_names() if name not in deleted]
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        assignments = _read_topics(admin, names[first : first + _TOPICS_AT_ONCE])
        states = admin.read_partition_states(list(assignments))
        minima = _min_isrs(admin, {partition.topic for partition in assignments})
        rows = []
        for partition, assignment in assignments.items():
            state = states.get(partition)
            leader: int | None = NO_LEADER
            isr: tuple[int, ...] | None = ()
            if isinstance(state, LeaderIsrAndControllerEpoch):
                leader, isr = state.leader_and_isr.leader, state.leader_and_isr.isr
            elif state is not None:
                leader, isr = None, None
            moving = assignment.adding_replicas, assignment.removing_replicas
            known = leader, isr, *moving, minima[partition.topic]
            rows.append((*partition, assignment.replicas, *known))
        yield pyarrow.RecordBatch.from_struct_array(pyarrow.array(rows, _STRUCT))


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


def _min_isrs(admin: ZkAdminStore, topics: Collection[str]) -> dict[str, int | None]:
    """Return ``min.insync.replicas`` of each topic; None where ZooKeeper does not have it."""
    [of_brokers] = admin.configs.read_broker_configs([]).values()
    of_topics = admin.configs.read_topic_configs(sorted(topics))
    default = _min_isr(of_brokers)
    return {topic: _min_isr(config) or default for topic, config in of_topics.items()}


def _min_isr(config: Mapping[str, str] | BadDataError) -> int | None:
    text = "" if isinstance(config, BadDataError) else config.get("min.insync.replicas", "")
    return int(text) if text.isdecimal() else None
