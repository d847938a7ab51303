"""The sizes of partitions: of the log directories of a running cluster, or from a file.

They are a table in the memory of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import pyarrow
import pyarrow.compute
import pyarrow.json
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
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.stores.admin_store import ZkAdminStore

_SCHEMA: Final = pyarrow.schema(
    [("topic", pyarrow.string()), ("partition", pyarrow.int32()), ("bytes", pyarrow.int64())]
)
_DESCRIBE_LOG_DIRS: Final = (KafkaApiKey.DESCRIBE_LOG_DIRS, 1)
_TIMEOUT_S: Final = 30.0
_MAX_TOTAL_BYTES: Final = 1 << 60  # sums of them are exact


class Sizes(NamedTuple):
    """The sizes of partitions: a table of topic, partition, bytes."""

    table: pyarrow.Table
    repeated: int = 0  # partitions that were named more than once


def sizes_from_file(path: Path, where: str) -> Sizes:
    """Read a JSON list or JSON lines of ``{"topic", "partition", "bytes"}``, or Parquet.

    A partition that is named more than once has its largest size.

    ``where`` is its name in messages. Raises ``InputError``.
    """
    if path.is_dir() and not any(path.glob("*.parquet")):
        raise InputError(f"--sizes: {where} has no Parquet files")
    try:
        data = b"" if path.is_dir() else plain(path.read_bytes(), where)
        if path.is_dir() or data.startswith(b"PAR1"):
            table = pyarrow.parquet.read_table(path, columns=_SCHEMA.names)
        elif data.lstrip().startswith(b"["):
            table = pyarrow.Table.from_pylist(orjson.loads(data), _SCHEMA)
        else:
            options = pyarrow.json.ParseOptions(
                explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"
            )
            table = pyarrow.json.read_json(pyarrow.BufferReader(data), parse_options=options)
        return _largest(table.select(_SCHEMA.names).cast(_SCHEMA), where)
    except OSError as error:
        raise InputError(f"--sizes: {where} cannot be read: {error.strerror or error}") from None
    except (
        pyarrow.ArrowException,
        orjson.JSONDecodeError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        reason = _bad_line(data) or str(error).partition("\n")[0]
        raise InputError(
            f'--sizes: {where} is not a list of {{"topic", "partition", "bytes"}}: {reason}'
        ) from None


def _bad_line(data: bytes) -> str | None:
    """Return the first line that is not JSON, if the first line is."""
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = orjson.loads(line or b"{}")
        except orjson.JSONDecodeError as error:
            what = str(error).partition(": line ")[0]
            return None if number == 1 else f"line {number} is not JSON: {what}"
        if not isinstance(row, dict):
            return None
    return None


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
        raise InputError(f"--sizes: {where} has an entry without topic, partition or bytes")
    if len(table) and pyarrow.compute.min(table["bytes"]).as_py() < 0:
        raise InputError(f"--sizes: {where} has a negative size")
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
