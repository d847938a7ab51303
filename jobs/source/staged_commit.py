"""Sends staged rows exactly once, without transactions.

First the rows of a commit are fixed: one rename moves their files, with the end offsets of the
topics, under the key of the commit. These rows are the commit, even if Spark computes the same
micro-batch again after a crash. Every record has the header ``regent.commit``: the id of the
commit, the file and the row. A writer that finds a begun commit reads the topics from these end
offsets, and sends the missing rows. A finished commit leaves a marker.

Two limits remain without transactions. A broker may append a request of a dead writer after its
successor has read the topics. The successor reads when the topics have not grown for a second, and
requests of a dead process arrive within milliseconds. And consumers see a commit grow, not appear
at once.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from regent.core.model import TopicPartition
from regent.jobs.source.columns import columns_schema
from regent.jobs.source.kafka_port import KafkaPort
from regent.jobs.source.offset_range import OffsetRange
from regent.jobs.source.offsets import Offsets, from_json, to_json
from regent.jobs.source.options import Subscription
from regent.jobs.source.outgoing import RecordProducer, RowColumns

COMMIT_HEADER: Final = "regent.commit"
_MANIFEST: Final = "manifest.json"
_PLACE: Final = struct.Struct(">II")  # file, row
_QUIET_S: Final = 1.0
_READ_TIMEOUT_S: Final = 120.0


class StagedCommit:
    """One commit under ``key``, by one driver at a time; ``run`` again until it returns."""

    def __init__(
        self, staging: Path, key: str, settings: Mapping[str, str], columns: RowColumns
    ) -> None:
        self._staging = staging
        self._directory = staging / key
        self._done = staging / f"{key}.done"
        self._settings = settings
        self._columns = columns

    def run(self, files: Sequence[Path]) -> None:
        """Send the rows of these files, or of those of an earlier try.

        Raises SendError, BrokersError and OSError; then it can be run again.
        """
        begun = self._directory.exists()
        if not begun and not files:
            return
        if not self._done.exists():
            if not begun:
                self._make_final(files)
            self._send(is_begun=begun)
            self._done.touch()
            _sync(self._staging)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._forget_predecessors()

    def _make_final(self, files: Sequence[Path]) -> None:
        unfinished = self._staging / f"{self._directory.name}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for number, path in enumerate(files):
            _sync(path)
            path.rename(unfinished / f"{number}.arrow")
        manifest = {
            "id": uuid.uuid4().hex,
            "files": len(files),
            "from": to_json(self._ends(_topics(unfinished, len(files), self._columns))),
        }
        (unfinished / _MANIFEST).write_text(json.dumps(manifest))
        _sync(unfinished / _MANIFEST)
        _sync(unfinished)
        unfinished.rename(self._directory)
        _sync(self._staging)

    def _send(self, *, is_begun: bool) -> None:
        manifest = json.loads((self._directory / _MANIFEST).read_bytes())
        commit_id = bytes.fromhex(manifest["id"])
        sent = self._already_sent(commit_id, from_json(manifest["from"])) if is_begun else set()
        producer = RecordProducer(self._settings)
        try:
            for number in range(manifest["files"]):
                batches = _batches(self._directory / f"{number}.arrow")
                rows = chain.from_iterable(map(self._columns.rows, batches))
                for at, row in enumerate(rows):
                    place = _PLACE.pack(number, at)
                    if place not in sent:
                        mark = (COMMIT_HEADER, commit_id + place)
                        producer.send(row._replace(headers=[*row.headers, mark]))
            producer.finish()
        except BaseException:
            producer.abandon()
            raise

    def _already_sent(self, commit_id: bytes, begin: Offsets) -> set[bytes]:
        """Return the (file, row) of the rows that an earlier try has sent."""
        found: set[bytes] = set()
        with closing(self._port()) as port:
            ends = self._quiet_ends(sorted({topic for topic, _ in begin}))
            for partition, end in ends.items():
                wanted = OffsetRange(partition, begin.get(partition, 0), end)
                for batch in port.read(wanted, columns_schema("headers")):
                    for headers in batch.column(0).to_pylist():
                        marks = [h["value"] for h in headers or () if h["key"] == COMMIT_HEADER]
                        found |= {m[len(commit_id) :] for m in marks if m.startswith(commit_id)}
        return found

    def _quiet_ends(self, topics: Sequence[str]) -> Offsets:
        ends = self._ends(topics)
        while True:
            time.sleep(_QUIET_S)
            later = self._ends(topics)
            if later == ends:
                return ends
            ends = later

    def _ends(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        if not topics:
            return {}
        with closing(self._port()) as port:
            return port.latest(port.partitions(Subscription(topics=tuple(topics))))

    def _port(self) -> KafkaPort:
        return KafkaPort(self._settings, fail_on_data_loss=True, poll_timeout_s=_READ_TIMEOUT_S)

    def _forget_predecessors(self) -> None:
        """Drop the markers of micro-batches before this one: Spark only repeats the last."""
        number = _batch_number(self._done)
        for marker in self._staging.glob("*.done"):
            before = _batch_number(marker)
            if before is not None and number is not None and before < number:
                marker.unlink(missing_ok=True)


def _batches(path: Path) -> Sequence[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]


def _topics(directory: Path, files: int, columns: RowColumns) -> list[str]:
    batches = (b for number in range(files) for b in _batches(directory / f"{number}.arrow"))
    return sorted({topic for batch in batches for topic in columns.topics(batch)})


def _batch_number(marker: Path) -> int | None:
    kind, _, number = marker.stem.partition("-")
    return int(number) if kind == "batch" and number.isdigit() else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
