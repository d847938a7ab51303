"""The settings of groups in a broker, and the topic that is created for them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from regent.broker.group_service import expiry_interval_ms
from regent.broker.internal_topics import creatable_topic
from regent.broker.machine_settings import filled
from regent.config.settings_file import load_settings
from regent.core.coordinator.group.group_metadata_manager import GroupConfig, GroupLogSettings
from regent.core.errors import Errors
from regent.core.protocol.groups import (
    CommitOffsets,
    JoinGroup,
    OffsetAndMetadata,
    SupportedProtocol,
)
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from regent.testing.waits import eventually, scaled
from tests.support.led_groups import ORDERS_0, LedGroups
from tests.support.stage import TIMEOUT_S


def config_with(**groups: Any) -> GroupConfig:
    return filled(GroupConfig, load_settings(None, {"groups": groups}))


def joining(session_timeout_ms: int = 10_000, *, requires_id: bool = False) -> JoinGroup:
    protocols = (SupportedProtocol("range", b""),)
    times = (session_timeout_ms, 10_000)
    return JoinGroup(
        "g", "", None, "c", "/::1", *times, "consumer", protocols, requires_member_id=requires_id
    )


@pytest.mark.parametrize(
    ("session_timeout_ms", "settings", "error"),
    [
        (5_000, {}, Errors.INVALID_SESSION_TIMEOUT),
        (5_000, {"group_min_session_timeout_ms": 5_000}, Errors.MEMBER_ID_REQUIRED),
        (1_900_000, {}, Errors.INVALID_SESSION_TIMEOUT),
        (1_900_000, {"group_max_session_timeout_ms": 1_900_000}, Errors.MEMBER_ID_REQUIRED),
    ],
)
def test_session_timeouts_have_limits(
    session_timeout_ms: int, settings: dict[str, int], error: Errors
):
    with ExitStack() as undo:
        groups = LedGroups(undo, config_with(**settings))
        joined = groups.ask(joining(session_timeout_ms, requires_id=True))
        assert joined.error_code is error


def test_the_number_of_members_of_a_group_is_limited():
    with ExitStack() as undo:
        groups = LedGroups(undo, config_with(group_max_size=1, group_initial_rebalance_delay_ms=0))
        assert groups.ask(joining()).error_code is Errors.NONE
        assert groups.ask(joining()).error_code is Errors.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("settings", [{"group_max_bytes": 1}, {"group_coordinator_max_bytes": 1}])
def test_what_members_tell_is_limited(settings: dict[str, int]):
    with ExitStack() as undo:
        groups = LedGroups(undo, config_with(**settings))
        assert groups.ask(joining()).error_code is Errors.GROUP_MAX_SIZE_REACHED


def test_an_empty_group_waits_for_more_members():
    with ExitStack() as undo:
        groups = LedGroups(undo, config_with(group_initial_rebalance_delay_ms=20))
        both = [groups.send(joining()) for _ in range(2)]
        sizes = sorted(len(answer.get(timeout=scaled(5)).members) for answer in both)
        assert sizes == [0, 2]


@pytest.mark.parametrize(
    ("settings", "error"),
    [({}, Errors.NONE), ({"offset_metadata_max_bytes": 2}, Errors.OFFSET_METADATA_TOO_LARGE)],
)
def test_the_metadata_of_a_position_is_limited(settings: dict[str, int], error: Errors):
    with ExitStack() as undo:
        groups = LedGroups(undo, config_with(**settings))
        commit = CommitOffsets("g", {ORDERS_0: OffsetAndMetadata(1, metadata="long")})
        assert groups.ask(commit) == {ORDERS_0: error}


def test_the_other_settings_are_passed_on():
    given = {
        "offsets_commit_timeout_ms": 1,
        "offsets_load_buffer_size": 2,
        "offsets_topic_compression_codec": 3,
        "offsets_retention_minutes": 4,
    }
    settings = load_settings(None, {"groups": given})
    log = filled(GroupLogSettings, settings)
    assert (
        log.offsets_commit_timeout_ms,
        log.offsets_load_buffer_size,
        log.offsets_topic_compression_codec,
    ) == (1, 2, 3)
    assert filled(GroupConfig, settings).offsets_retention_ms == 4 * 60_000


def test_expired_positions_are_looked_for_again_and_again():
    settings = load_settings(None, {"groups": {"offsets_retention_check_interval_ms": 5}})
    with ExitStack() as undo:
        groups = LedGroups(undo, expiry_interval_ms=expiry_interval_ms(settings))
        old = OffsetAndMetadata(1, commit_timestamp_ms=0, expire_timestamp_ms=1)
        groups.ask(CommitOffsets("g", {ORDERS_0: old}))
        eventually(lambda: not groups.positions("g").offsets, "the position is gone", TIMEOUT_S)


def test_the_topic_of_groups_has_the_settings_of_the_broker():
    given = {
        "offsets_topic_num_partitions": 7,
        "offsets_topic_replication_factor": 2,
        "offsets_topic_segment_bytes": 1_000_000,
    }
    topic = creatable_topic(load_settings(None, {"groups": given}), GROUP_METADATA_TOPIC)
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (
        GROUP_METADATA_TOPIC,
        7,
        2,
    )
    assert {row.name: row.value for row in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "1000000",
    }
