"""Every kind of damaged file is refused by each job that reads it, in one line that names it."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from regent.jobs import job_session

ROWS = [{"topic": "t", "partition": p, "replicas": [p % 3, (p + 1) % 3]} for p in range(12)]
SOUND: Final = {
    "topics": [{"topic": "t", "partitions": 1, "replication_factor": 1}],
    "brokers": [{"id": 0, "rack": "t"}, {"id": 1, "rack": "u"}, {"id": 2, "rack": "t"}],
    "assignment": {"version": 1, "partitions": ROWS},
    "sizes": [{"topic": "t", "partition": p, "bytes": 1} for p in range(12)],
}
PLACE = ("place", "place", "--topics", "topics", "--brokers", "brokers", "--out", "out")
PLAN = ("plan", "plan", "rebalance", "--assignment", "assignment", "--brokers", "brokers")
BALANCE = ("report_balance", "report balance", "--assignment", "assignment", "--html", "out")
READERS: Final[dict[str, Sequence[Sequence[str]]]] = {
    "topics": [PLACE],
    "brokers": [PLACE, (*PLAN, "--out", "out"), (*BALANCE, "--brokers", "brokers")],
    "assignment": [(*PLAN, "--out", "out"), BALANCE],
    "sizes": [(*PLAN, "--sizes", "sizes", "--out", "out")],
}
DEEP = 100_000
DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "empty": lambda _: b"",
    "blank": lambda _: b" \n\r\n ",
    "cut": lambda data: data[: len(data) * 2 // 3],
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "latin-1": lambda data: data.replace(b'"t"', b'"\xe4"'),
    "zeros": lambda _: bytes(100),
    "a zero": lambda data: data.replace(b"1", b"\0", 1),
    "null": lambda _: b"null",
    "a null and a newline": lambda _: b"\nnull\n",
    "a number": lambda _: b"7",
    "a text": lambda _: b'"x"',
    "a list of null": lambda _: b"[null]",
    "deep lists": lambda _: b"[" * DEEP + b"]" * DEEP,
    "deep objects": lambda _: b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a deep field": lambda data: data.replace(b"1", b"[" * DEEP + b"]" * DEEP, 1),
    "not a number": lambda data: data.replace(b"1", b"NaN", 1),
    "a huge number": lambda data: data.replace(b"1", b"1" * 5_000, 1),
    "a comma at the end": lambda data: data[:-1] + b"," + data[-1:],
    "two documents": lambda data: data + data,
    "Parquet's first bytes": lambda _: b"PAR1",
    "gzip.gz cut": lambda data: gzip.compress(data)[:-12],
    "gzip.gz with another sum": lambda data: gzip.compress(data)[:-8] + b"12345678",
    "gzip.gz with more": lambda data: gzip.compress(data) + b"xxx",
    "plain.gz": lambda data: data,
    "gzip under another name": gzip.compress,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sound files for all jobs, and a Spark that must not be started."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(job_session, "spark_session", start)
    for name, content in SOUND.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def refused(folder: Path, reader: Sequence[str], role: str, file: Path) -> str:
    """Run a job with a file in the place of a sound one; return that it was refused."""
    module, command, *arguments = reader
    places = {name: str(folder / name) for name in (*SOUND, "out")} | {role: str(file)}
    words = [places.get(word, word) for word in arguments]
    status: int = importlib.import_module(f"regent.jobs.{module}").main(words)
    assert status == 2, command
    assert not (folder / "out").exists()
    return command


@pytest.mark.parametrize("role", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_in_one_line(
    damage: str, role: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    sound = (folder / role).read_bytes()
    file = folder / ("damaged.json.gz" if ".gz" in damage else "damaged.json")
    file.write_bytes(DAMAGES[damage](sound))
    for reader in READERS[role]:
        command = refused(folder, reader, role, file)
        said = capsys.readouterr().err
        assert said.startswith(f"regent jobs {command}")
        assert said.count("\n") == 1
        assert file.name in said
        assert len(said) < 600


@pytest.mark.parametrize("role", READERS)
def test_what_is_no_file_is_named_in_one_line(
    role: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    for name in ("missing", "folder", "loop"):
        for reader in READERS[role]:
            refused(folder, reader, role, folder / name)
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert name in said
