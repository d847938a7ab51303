"""The sizes of partitions: of the log directories of a running cluster, or from a file.

They are a table in the memory of the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.core.errors import BadDataError, RegentError
from regent.core.model import EndPoint
from regent.core.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from regent.jobs.command import InputError
from regent.jobs.files import plain
from regent.jobs.json_list import Fields, problem_of_line, problem_of_row
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.stores.admin_store import ZkAdminStore

_SCHEMA: Final = pyarrow.schema(
    [("topic", pyarrow.string()), ("partition", pyarrow.int32()), ("bytes", pyarrow.int64())]
)
_DESCRIBE_LOG_DIRS: Final = (KafkaApiKey.DESCRIBE_LOG_DIRS, 1)
_TIMEOUT_S: Final = 30.0
_MAX_TOTAL_BYTES: Final = 1 << 60  # sums of them are exact

_FIELDS: Final[Fields] = {
    "topic": lambda value: type(value) is str,
    "partition": lambda value: type(value) is int and 0 <= value < 2**31,
    "bytes": lambda value: type(value) is int and 0 <= value < 2**63,
}


class NoSizesError(RegentError):
    """Rows are no sizes of partitions."""


class Sizes(NamedTuple):
    """The sizes of partitions: a table of topic, partition, bytes."""

    table: pyarrow.Table
    repeated: int = 0  # partitions that were named more than once


def sizes_from_file(path: Path, where: str) -> Sizes:
    """Read a JSON list or JSON lines of ``{"topic", "partition", "bytes"}``, or Parquet.

    A partition that is named more than once has its largest size.

    ``where`` is its name in messages. Raises ``InputError``.
    """
    try:
        if path.is_dir() and not any(path.glob("*.parquet")):
            raise InputError(f"--sizes: {where} has no Parquet files")
        data = b"PAR1" if path.is_dir() else plain(path.read_bytes(), where)
        if data.startswith(b"PAR1"):
            table = pyarrow.parquet.read_table(path, columns=_SCHEMA.names).cast(_SCHEMA)
        else:
            table = pyarrow.Table.from_pylist(_rows(data), _SCHEMA)
        return _largest(table, where)
    except OSError as error:
        raise InputError(f"--sizes: {where} cannot be read: {error.strerror or error}") from None
    except (NoSizesError, pyarrow.ArrowException) as error:
        raise InputError(
            f"--sizes: {where}: {str(error).partition(chr(10))[0]};"
            ' each entry must be {"topic": "a", "partition": 0, "bytes": 1}'
        ) from None


def _rows(data: bytes) -> list[Any]:
    """Return the entries of a list, or of lines. Raises ``NoSizesError`` for the first bad one."""
    if not data.strip():
        raise NoSizesError("it is empty")
    if not data.lstrip().startswith(b"["):
        lines = [(n, line) for n, line in enumerate(data.splitlines(), 1) if line.strip()]
        _check((f"line {n}", problem_of_line(line, _FIELDS)) for n, line in lines)
        return [orjson.loads(line) for _, line in lines]
    try:
        rows: list[Any] = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise NoSizesError(f"it is not JSON: {error}") from None
    _check((f"entry {n}", problem_of_row(row, _FIELDS)) for n, row in enumerate(rows))
    return rows


def _check(problems: Iterable[tuple[str, str | None]]) -> None:
    for name, problem in problems:
        if problem is not None:
            raise NoSizesError(f"{name} {problem}")


def sizes_in_cluster(admin: ZkAdminStore) -> Sizes:
    """Ask every registered broker for the sizes of its logs.

    A partition has the size of its largest replica. Raises ``RegentError`` for a broker that does
    not answer.
    """
    rows: list[tuple[str, int, int]] = []
    for broker_id, registration in admin.read_brokers().items():
        if isinstance(registration, BadDataError):
            raise registration
        end_point = SECURITY_OF_COMMAND.endpoint_of(registration.info)
        if end_point is None:
            raise RegentError(f"--sizes: broker {broker_id} has no PLAINTEXT listener")
        try:
            rows += _logs(end_point)
        except NoAnswerError as error:
            raise RegentError(
                f"--sizes: broker {broker_id} does not describe its log directories: {error}"
            ) from None
    structs = pyarrow.array(rows, pyarrow.struct(list(_SCHEMA)))
    found = _largest(pyarrow.Table.from_struct_array(structs), "the cluster")
    return found._replace(repeated=0)  # each broker has named its replica


def _largest(table: pyarrow.Table, where: str) -> Sizes:
    if any(table[name].null_count for name in _SCHEMA.names):
        raise NoSizesError("an entry is without topic, partition or bytes")
    if len(table) and min(pyarrow.compute.min(table[n]).as_py() for n in _SCHEMA.names[1:]) < 0:
        raise NoSizesError("a partition or a size is negative")
    total = pyarrow.compute.sum(table["bytes"].cast("float64", safe=False)).as_py()
    if total is not None and total > _MAX_TOTAL_BYTES:
        raise InputError(f"--sizes: the sizes in {where} add up to more than an exbibyte")
    by_partition = table.group_by(["topic", "partition"])
    largest = by_partition.aggregate([("bytes", "max"), ("bytes", "count")])
    times = largest["bytes_count"].to_numpy()
    names = ["topic", "partition", "bytes_max"]
    return Sizes(largest.select(names).rename_columns(_SCHEMA.names), int((times > 1).sum()))


def _logs(end_point: EndPoint) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and bytes of the logs of a broker."""
    every = DescribeLogDirsRequest(topics=None)
    found = ask_broker(end_point, _DESCRIBE_LOG_DIRS, every, DescribeLogDirsResponse, _TIMEOUT_S)
    for directory in found.results:
        for topic in directory.topics:
            for log in topic.partitions:
                if not log.is_future_key:
                    yield topic.name, log.partition_index, log.partition_size
