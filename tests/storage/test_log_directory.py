"""A log directory has one process at a time, one broker and one cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.core.errors import ForeignDirectoryError, StorageError
from regent.core.replica_logs import SeenOfCluster
from regent.storage.log.log_file import CorruptSegmentError
from regent.storage.log_directory import LogDirectory
from regent.testing.waits import next_line, scaled

META = "meta.properties"
CLUSTER = "Yx3F9Jk0T1-abcdefghij_"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker-3" / "log"


@pytest.fixture
def directory(path: Path) -> Iterator[LogDirectory]:
    """The log directory of broker 3, open."""
    directory = LogDirectory(path)
    directory.open(3)
    yield directory
    directory.close()


def fails(path: Path, broker_id: int, reason: str) -> None:
    """Check that a broker cannot open the directory, with an error of one line."""
    with pytest.raises(StorageError, match=reason) as raised:
        LogDirectory(path).open(broker_id)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


# --- one process ----------------------------------------------------------------------------------


def test_a_directory_is_made_with_its_parents(directory: LogDirectory, path: Path) -> None:
    assert sorted(file.name for file in path.iterdir()) == [".lock"]


def test_a_directory_in_use_is_refused_until_it_is_closed(
    directory: LogDirectory, path: Path
) -> None:
    fails(path, 3, "in use by another process; .* --data-dir")
    directory.close()
    directory.close()
    other = LogDirectory(path)
    other.open(3)
    other.close()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    fails(tmp_path / "file" / "log", 3, "Not a directory")
    fails(tmp_path / "file", 3, "File exists")


# --- one broker -----------------------------------------------------------------------------------


def test_a_directory_of_another_broker_is_refused_and_left_unlocked(
    directory: LogDirectory, path: Path
) -> None:
    directory.join_cluster(3, CLUSTER)
    directory.close()
    fails(path, 4, "belongs to broker 3, not to broker 4")
    directory.open(3)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_directory_whose_owner_cannot_be_read_is_refused_and_left_unlocked(
    directory: LogDirectory, path: Path, content: bytes | None
) -> None:
    directory.close()
    if content is None:
        (path / META).mkdir()
    else:
        (path / META).write_bytes(content)
    fails(path, 3, META)
    if content is None:
        (path / META).rmdir()
    else:
        (path / META).unlink()
    directory.open(3)


# --- one cluster ----------------------------------------------------------------------------------


def test_joining_writes_kafkas_file(directory: LogDirectory, path: Path) -> None:
    directory.join_cluster(3, CLUSTER)
    lines = (path / META).read_text().splitlines()
    assert lines == ["version=0", "broker.id=3", f"cluster.id={CLUSTER}"]
    directory.join_cluster(3, CLUSTER)
    assert sorted(file.name for file in path.iterdir()) == [".lock", META]


def test_a_directory_of_another_cluster_is_refused(directory: LogDirectory, path: Path) -> None:
    directory.join_cluster(3, CLUSTER)
    before = (path / META).read_bytes()
    with pytest.raises(StorageError, match=f"belongs to cluster {CLUSTER}, .* another"):
        directory.join_cluster(3, "another")
    assert (path / META).read_bytes() == before


def test_kafkas_files_are_understood(path: Path) -> None:
    path.mkdir(parents=True)
    kafka = f"#\n#Sat Nov 21 10:00:00 UTC 2026\ncluster.id={CLUSTER}\nversion = 0\nbroker.id=3\n\n"
    (path / META).write_text(kafka)
    fails(path, 4, "belongs to broker 3")
    directory = LogDirectory(path)
    directory.open(3)
    with pytest.raises(StorageError, match="belongs to cluster"):
        directory.join_cluster(3, "another")
    directory.join_cluster(3, CLUSTER)
    directory.close()


def test_what_else_kafka_keeps_in_its_file_is_kept(path: Path) -> None:
    path.mkdir(parents=True)
    (path / META).write_text(f"cluster.id={CLUSTER}\nversion=0\nbroker.id=3\ndirectory.id=abc\n")
    directory = LogDirectory(path)
    directory.open(3)
    directory.join_cluster(3, CLUSTER)
    directory.close()
    assert "directory.id=abc" in (path / META).read_text().splitlines()


@pytest.mark.parametrize(
    "text",
    [
        f"version=1\nnode.id=3\ncluster.id={CLUSTER}\n",
        f"version=1\nnode.id=3\nbroker.id=3\ncluster.id={CLUSTER}\n",
        f"version=2\nbroker.id=3\ncluster.id={CLUSTER}\n",
    ],
)
def test_a_directory_of_kafka_without_zookeeper_is_refused_and_not_changed(
    path: Path, text: str
) -> None:
    path.mkdir(parents=True)
    (path / META).write_text(text)
    fails(
        path, 3, r"belongs to Kafka without ZooKeeper \(KRaft\), version . of meta.properties: give"
    )
    assert (path / META).read_text() == text


KAFKA_LOCKS = """
import fcntl, sys
with open(sys.argv[1], "ab") as lock:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(1)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_directory_that_kafka_has_locked_is_refused_and_the_other_way_round(path: Path) -> None:
    path.mkdir(parents=True)
    command = [sys.executable, "-c", KAFKA_LOCKS, str(path / ".lock")]  # as Java's FileLock
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as kafka:
        try:
            assert next_line(kafka, "it has locked the directory") == b"locked\n"
            fails(path, 3, "in use by another process")
        finally:
            kafka.kill()
    directory = LogDirectory(path)
    directory.open(3)
    refused = subprocess.run(command, input=b"", check=False, timeout=scaled(10.0))
    directory.close()
    assert refused.returncode == 1


@pytest.mark.parametrize(
    ("found", "said"), [(None, "ZooKeeper has no /cluster/id"), ("another", "says another")]
)
def test_a_directory_refuses_a_zookeeper_of_another_cluster(
    directory: LogDirectory, path: Path, found: str | None, said: str
) -> None:
    directory.check_cluster(found)  # no cluster yet
    directory.join_cluster(3, CLUSTER)
    directory.check_cluster(CLUSTER)
    with pytest.raises(ForeignDirectoryError, match=f"{path} belongs to cluster {CLUSTER}, but.*"):
        directory.check_cluster(found)
    directory.close()
    again = LogDirectory(path)
    again.open(3)
    with pytest.raises(ForeignDirectoryError, match=said):
        again.check_cluster(found)
    again.close()


def test_the_newest_zxid_is_stored_in_a_file_that_kafka_ignores(
    directory: LogDirectory, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert directory.read_seen() == SeenOfCluster()
    directory.note_seen(SeenOfCluster(controller_epoch=7, zxid=300, mark=200))
    assert directory.read_seen() == SeenOfCluster(7, 300, 200)
    (path / "control-plane.properties").write_text("controller.epoch=7\nzookeeper.zxid=300\n")
    assert directory.read_seen() == SeenOfCluster(7, 300), "in the format of an earlier release"
    assert not caplog.messages
    (path / "control-plane.properties").write_text("controller.epoch=seven")
    assert directory.read_seen() == SeenOfCluster()
    assert "ignoring " in caplog.text


# --- failures -------------------------------------------------------------------------------------


def test_the_first_error_takes_a_directory_offline_for_good(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[Path] = []
    directory = LogDirectory(path, failed.append)
    with directory:
        assert directory.failure == ""
    with pytest.raises(StorageError, match=r"is offline: .*nothing/here: No such file"), directory:
        (path / "nothing" / "here").read_bytes()
    with pytest.raises(StorageError, match=r"nothing/here: No such file"), directory:
        failed.append(path / "the body is not reached")
    directory.fail("something else")
    assert directory.is_offline
    assert failed == [path]
    assert [record.getMessage() for record in caplog.records] == [directory.failure]


def test_an_error_of_a_file_of_one_log_takes_no_directory_offline(directory: LogDirectory) -> None:
    with pytest.raises(CorruptSegmentError), directory:
        raise CorruptSegmentError("a batch is damaged")
    with pytest.raises(ValueError, match="ours"), directory:
        raise ValueError("ours")
    assert not directory.is_offline


def test_a_clean_shutdown_is_marked_until_the_next_use(directory: LogDirectory, path: Path) -> None:
    assert not directory.was_closed_cleanly()
    directory.mark_clean()
    assert directory.was_closed_cleanly()
    assert (path / ".kafka_cleanshutdown").exists()
    directory.mark_in_use()
    directory.mark_in_use()
    assert not directory.was_closed_cleanly()


def test_a_directory_of_another_broker_does_not_count_as_failed(
    directory: LogDirectory, path: Path
) -> None:
    directory.join_cluster(3, CLUSTER)
    with pytest.raises(ForeignDirectoryError):
        directory.join_cluster(3, "another")
    with pytest.raises(ForeignDirectoryError):
        LogDirectory(path).open(3)
    directory.close()
    with pytest.raises(ForeignDirectoryError):
        LogDirectory(path).open(4)
