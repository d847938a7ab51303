from __future__ import annotations

import pytest

from regent.core.log_config import LogConfig
from regent.core.replica_logs import PartitionLog
from tests.storage.contract.hosts import DEFAULTS, T0, T1, U0, A, B, Host, create, log_of
from tests.storage.contract.records import append, values


def test_before_its_creation_a_log_is_not_hosted(host: Host):
    assert dict(host.logs.hosted()) == {}
    assert host.logs.get(T0) is None
    assert not host.logs.is_offline(T0)


def test_logs_and_topic_ids_survive_a_restart(host: Host):
    for name, topic_id in ((T0, A), (T1, A), (U0, B)):
        append(create(host, name, topic_id), b"%d" % name.partition)
    for end_process in (host.restart, host.crash, host.restart):
        assert dict(host.logs.hosted()) == {T0: A, T1: A, U0: B}
        log = log_of(host, T1)
        assert (log.topic_id, values(log)) == (A, [b"1"])
        end_process()


def test_a_log_is_created_once(host: Host, log: PartitionLog):
    append(log, b"a")
    for is_new in (True, False):
        same = host.logs.get_or_create(T0, B, is_new=is_new)
        assert (same.topic_id, values(same)) == (A, [b"a"])


def test_a_log_without_an_id_gets_one(host: Host):
    create(host, T0, None)
    assert dict(host.logs.hosted()) == {T0: None}
    host.restart()
    assert log_of(host).topic_id is None
    assert host.logs.get_or_create(T0, A, is_new=False).topic_id == A
    host.crash()
    assert log_of(host).topic_id == A


@pytest.mark.parametrize("way", ["delete", "set_aside"])
def test_a_removed_log_may_be_created_again(host: Host, log: PartitionLog, way: str):
    append(log, b"a")
    append(create(host, T1), b"b")
    host.logs.checkpoint_high_watermarks({T0: 1, T1: 1})
    getattr(host.logs, way)(T0)
    for end_process in (host.restart, host.crash):
        assert dict(host.logs.hosted()) == {T1: A}
        assert host.logs.get(T0) is None
        assert values(log_of(host, T1)) == [b"b"]
        end_process()
    again = host.logs.get_or_create(T0, B, is_new=True)
    assert (again.topic_id, again.log_end_offset) == (B, 0)
    getattr(host.logs, way)(T0)
    create(host, T0, A)
    assert dict(host.logs.hosted()) == {T0: A, T1: A}


@pytest.mark.parametrize("is_held", [True, False])
def test_the_log_of_a_deleted_topic_is_used_again_if_the_topic_returns(
    host: Host, log: PartitionLog, is_held: bool
):
    append(log, b"a")
    host.logs.delete(T0, deleted_topic=A)
    assert not host.logs.deleted.hold(T0, B)
    if is_held:
        assert host.logs.deleted.hold(T0, A)
        host.crash()
        assert host.logs.deleted.hold(T0, A)
    assert dict(host.logs.hosted()) == {}
    again = host.logs.get_or_create(T0, A, is_new=False)
    assert values(again) == [b"a"]
    assert (again.stray_high_watermark >= 0) == is_held, "another topic may have its id"


def test_a_log_that_lacks_records_is_not_held(host: Host, log: PartitionLog):
    append(log, b"a")
    host.logs.delete(T0)
    assert not host.logs.deleted.hold(T0, A), "the topic was not deleted"
    host.logs.get_or_create(T0, A, is_new=False)
    host.logs.delete(T0, deleted_topic=A)
    assert not host.logs.deleted.hold(T0, A), "its replica had a log, which was gone"
    host.logs.mark_whole(T0)
    host.logs.get_or_create(T0, A, is_new=False)
    host.logs.mark_whole(T0)
    host.logs.delete(T0, deleted_topic=A)
    assert host.logs.deleted.hold(T0, A)


def test_a_new_topic_gets_no_deleted_log(host: Host, log: PartitionLog):
    append(log, b"a")
    host.logs.delete(T0, deleted_topic=A)
    assert host.logs.get_or_create(T0, A, is_new=True).log_end_offset == 0
    host.logs.delete(T0)
    assert not host.logs.deleted.hold(T0, A)


def test_a_missing_log_can_be_deleted(host: Host):
    host.logs.delete(T0)
    host.logs.delete(T0)
    assert dict(host.logs.hosted()) == {}


def test_high_watermarks_survive_a_restart(host: Host, log: PartitionLog):
    create(host, T1)
    append(log, b"a", b"b", b"c")
    assert host.logs.checkpointed_high_watermark(T0) == 0
    host.logs.checkpoint_high_watermarks({T0: 2, T1: 0})
    host.logs.checkpoint_high_watermarks({T0: 3, T1: 0})
    for end_process in (host.restart, host.crash):
        assert host.logs.checkpointed_high_watermark(T0) == 3
        assert host.logs.checkpointed_high_watermark(T1) == 0
        assert host.logs.checkpointed_high_watermark(U0) == 0
        end_process()


@pytest.mark.parametrize("end", [0, 2])
def test_a_truncated_log_that_grows_again_has_no_higher_high_watermark_after_a_crash(
    host: Host, log: PartitionLog, end: int
):
    other = create(host, T1)
    for value in (b"a", b"b", b"c"):
        append(log, value)
        append(other, value)
    host.logs.checkpoint_high_watermarks({T0: 3, T1: 3})
    if end:
        log.truncate_to(end)
    else:
        log.truncate_fully_and_start_at(end)
    append(log, b"d")
    host.crash()
    high_watermarks = [host.logs.checkpointed_high_watermark(name) for name in (T0, T1)]
    assert high_watermarks == [end, 3]


def test_a_log_has_the_configuration_of_its_topic(host: Host, log: PartitionLog):
    assert log.config == DEFAULTS
    host.configure({"t": LogConfig(min_insync_replicas=2)})
    assert log.config.min_insync_replicas == 2
    assert create(host, U0).config == DEFAULTS
    host.restart()
    assert log_of(host).config.min_insync_replicas == 2
