"""Records of ZooKeeper's transaction log, as a server wrote them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.support.transaction_log import TransactionKind, Write, ZooKeeperLog

_RECORDED = base64.b64decode(
    "WktMRwAAAAIAAAAAAAAAAAAAAADfFgsEAAAAMAEAA7Ze0QAAAAAAAAAAAAAAAAABAAABoheHm3T////2AAAXcAAA"
    "AAIAAAAAUcbWYEIAAAAAGCEMlAAAAGMBAAO2XtEAAAAAAAEAAAAAAAAAAgAAAaIXh5uBAAAADgAAAAEAAAABAAAA"
    "KwAAAAIvYQAAAAExAAAAAQAAAB8AAAAFd29ybGQAAAAGYW55b25lAAAAAAEAAAACAAAAAReftv5CAAAAANfEDTgA"
    "AAB7AQADtl7RAAAAAAACAAAAAAAAAAMAAAGiF4ebjAAAAA4AAAACAAAABQAAAA8AAAACL2EAAAABMgAAAAEAAAAB"
    "AAAALAAAAAQvYS9iAAAAAAAAAAEAAAAfAAAABXdvcmxkAAAABmFueW9uZQAAAAABAAAAAgAAAAEhVYvDQgAAAADs"
    "1gbfAAAAQgEAA7Ze0QAAAAAAAwAAAAAAAAAEAAABoheHm5EAAAAOAAAAAQAAAA0AAAAKAAAAAi9hAAAAAgAAAAIA"
    "AAABIVWLw0IAAAAAeeMVzQAAAEgBAAO2XtEAAAAAAAQAAAAAAAAABQAAAaIXh5uWAAAADgAAAAL/////AAAABP//"
    "/5n/////AAAABP////4AAAACAAAAASFVi8NCAAAAAC6QDBMAAABjAQADtl7RAAAAAAAFAAAAAAAAAAYAAAGiF4eb"
    "mwAAAA4AAAABAAAAAQAAACsAAAACL2UAAAABeAAAAAEAAAAfAAAABXdvcmxkAAAABmFueW9uZQEAAAACAAAAAgAA"
    "AAIzqlZGQgAAAADstwdGAAAAQAEAA7Ze0QAAAAAABgAAAAAAAAAHAAABoheHm54AAAAOAAAAAQAAAAIAAAAIAAAA"
    "BC9hL2IAAAACAAAAAmJ1Y1lCAAAAABmQCuYAAAA2AQADtl7RAAAAAAAJAAAAAAAAAAgAAAGiF4ebuP////UAAAAB"
    "AAAAAi9lAAAAAgAAAAIF87EhQg=="
)
"""A session that creates, sets and deletes, alone and together, checks, is refused, and ends."""

_TRANSACTIONS = [
    (TransactionKind.SESSION_OPENED, ()),
    (TransactionKind.CHANGE, (Write("create", "/a", b"1"),)),
    (TransactionKind.CHANGE, (Write("set", "/a", b"2"), Write("create", "/a/b"))),
    (TransactionKind.CHANGE, ()),
    (TransactionKind.REFUSED, ()),
    (TransactionKind.CHANGE, (Write("create", "/e", b"x"),)),
    (TransactionKind.CHANGE, (Write("delete", "/a/b"),)),
    (TransactionKind.SESSION_CLOSED, (Write("delete", "/e"),)),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "log.1").write_bytes(_RECORDED + bytes(1000))  # a server allocates ahead
    return tmp_path


def test_each_transaction_has_its_writes_and_its_author(directory: Path):
    found = ZooKeeperLog(directory).read_new()
    assert [(t.kind, t.writes) for t in found] == _TRANSACTIONS
    assert [t.zxid for t in found] == list(range(1, 9))
    assert len({t.session for t in found}) == 1
    assert [t.closes_session for t in found] == [False] * 7 + [True]


def test_a_record_is_returned_once_and_not_before_it_is_complete(tmp_path: Path):
    log, file = ZooKeeperLog(tmp_path), tmp_path / "log.1"
    found = []
    for length in range(0, len(_RECORDED) + 7, 7):
        file.write_bytes(_RECORDED[:length].ljust(2000, b"\0"))
        found += log.read_new()
    assert [(t.kind, t.writes) for t in found] == _TRANSACTIONS


def test_files_are_read_in_the_sequence_of_their_first_ids(directory: Path):
    (directory / "log.a").write_bytes(_RECORDED)
    (directory / "log.10").write_bytes(_RECORDED)
    log = ZooKeeperLog(directory)
    assert len(log.read_new()) == 3 * len(_TRANSACTIONS)
    (directory / "log.1").unlink()  # purged
    assert log.read_new() == []
