"""Kafka's Java clients and librdkafka agree with the table of compressed frames.

The batches get into a log without being checked, as if a broker took every frame.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.records.compression import decompressed
from tests.broker.api.one_broker import OneBroker
from tests.genuine_clients.java_clients import JavaClients
from tests.support.compressed_frames import FRAMES, Frame
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import keyed_batch

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
TOPIC = "frames"
STUCK_S = 10.0
HEADER_BYTES = 61


def values_in_java(java: JavaClients, frame: Frame) -> list[bytes] | None:
    """Return the values that Java's clients read; None: they cannot."""
    kafka = java.jvm.org.apache.kafka.common
    buffer = java.jvm.java.nio.ByteBuffer.wrap(frame.batch())
    try:
        records = list(kafka.record.MemoryRecords.readableRecords(buffer).records().iterator())
        return [bytes(kafka.utils.Utils.toArray(record.value())) for record in records]
    except Py4JJavaError:
        return None


def values_in_librdkafka(broker: OneBroker) -> dict[int, list[bytes] | None]:
    """Return the values that librdkafka reads of each partition; None: it cannot."""
    found: dict[int, list[bytes] | None] = {}
    while len(found) < len(FRAMES):
        left = [number for number in range(len(FRAMES)) if number not in found]
        reader = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.genuine_clients.frame_reader"),
                *(broker.address, TOPIC, *map(str, left)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        with reader:
            watch = Watch(reader)
            assert reader.stdout is not None
            for line in reader.stdout:
                watch.restart()
                number, values = json.loads(line)
                found[number] = None if values is None else [bytes.fromhex(v) for v in values]
            watch.stop()
        if reader.returncode:
            found[next(number for number in left if number not in found)] = None
    return found


def is_decompressed(frame: Frame) -> bool:
    plain = keyed_batch(*[(b"key", value) for value in frame.values])[HEADER_BYTES:]
    try:
        return decompressed(frame.codec, memoryview(frame.batch())[HEADER_BYTES:]) == plain
    except ValueError:
        return False


class Watch:
    """Kills a process that says nothing for a while."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._process = process
        self._timer = self._started()

    def restart(self) -> None:
        self._timer.cancel()
        self._timer = self._started()

    def stop(self) -> None:
        self._timer.cancel()

    def _started(self) -> threading.Timer:
        timer = threading.Timer(STUCK_S, self._process.kill)
        timer.start()
        return timer


@pytest.mark.slow
def test_frames_are_in_the_table_as_every_client_reads_them(java: JavaClients):
    broker = OneBroker(MemoryLogs(), {TOPIC: len(FRAMES)})
    broker.start()
    try:
        for number, frame in enumerate(FRAMES.values()):
            append(broker, TopicPartition(TOPIC, number), frame.batch())
        in_librdkafka = values_in_librdkafka(broker)
    finally:
        broker.close()
    wrong = {}
    for number, (name, frame) in enumerate(FRAMES.items()):
        reads_java = values_in_java(java, frame) == frame.values
        reads_librdkafka = in_librdkafka[number] == frame.values
        reads_ours = is_decompressed(frame)
        if frame.is_taken is not (reads_java and reads_librdkafka and reads_ours):
            wrong[name] = {"Java": reads_java, "librdkafka": reads_librdkafka, "ours": reads_ours}
    assert wrong == {}


def append(broker: OneBroker, topic_partition: TopicPartition, batch: bytes) -> None:
    answers: list[Any] = []
    data = {topic_partition: memoryview(bytearray(batch))}
    broker.replica_manager.produce(1, data, 0, answers.append)
    assert answers[0][topic_partition].error_code is Errors.NONE
