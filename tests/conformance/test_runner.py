"""The runner itself: every part of a case must be read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.fields import Case, Fields, UnknownInCaseError
from tests.conformance.groups import RUNNERS, play
from tests.conformance.scenarios import run

ELECTION: dict[str, Any] = {"algorithm": "offline", "assignment": [1], "isr": [1], "live": [1]}


def test_an_unknown_group_fails():
    with pytest.raises(UnknownInCaseError, match="colours/red: no runner for this group"):
        play("colours", {"name": "red"})


def test_an_unread_key_fails():
    play("leader_election", {"name": "n", "in": ELECTION, "expect": {"leader": 1}})
    for where in ("in", "expect"):
        values: dict[str, Any] = {"name": "n", "in": ELECTION, "expect": {"leader": 1}}
        values[where] = {**values[where], "colour": "red"}
        with pytest.raises(UnknownInCaseError, match="colour"):
            play("leader_election", values)


def test_a_wrong_expectation_fails():
    with pytest.raises(AssertionError):
        play("leader_election", {"name": "n", "in": ELECTION, "expect": {"leader": 2}})


def test_an_unknown_value_fails():
    given = {**ELECTION, "algorithm": "roulette"}
    with pytest.raises(UnknownInCaseError, match="roulette"):
        RUNNERS["leader_election"](Case("g", {"name": "n", "in": given, "expect": {}}))


def test_an_unknown_step_or_broker_fails():
    with pytest.raises(UnknownInCaseError, match="dance"):
        run(["C"], {}, [{"op": "dance"}])
    with pytest.raises(UnknownInCaseError, match="nobody"):
        run(["C"], {}, [{"op": "shutdown", "broker": "nobody"}])


def test_a_condition_that_never_holds_fails():
    with pytest.raises(AssertionError, match="this did not happen"):
        run(["C"], {}, [{"op": "expect_controller_epoch", "value": 7}])


CLUSTER = {"brokers": 3, "rf": 2, "partitions": 3, "min_isr": 1}
LOSSLESS = {"acknowledged_consumed": True}
STOP = {"kind": "stop", "mode": "hard"}


def play_fault(
    fault: dict[str, Any], expect: dict[str, Any], *targets: str, **cluster: Any
) -> None:
    values = {"name": "n", "fault": fault, "expect": expect, "targets": list(targets)}
    play("fault_mode", {**values, "cluster": {**CLUSTER, **cluster}})


@pytest.mark.parametrize(
    ("fault", "unknown"),
    [
        ({"kind": "rain"}, "fault.kind is 'rain'"),
        ({"kind": "stop", "mode": "slow"}, "fault.mode is 'slow'"),
        ({**STOP, "rounds": 5}, "rounds"),
        ({"kind": "bounce", "mode": "hard", "rounds": "many"}, "rounds is 'many'"),
        ({"kind": "reassign", "moves": "drop"}, "fault.moves is 'drop'"),
        ({"kind": "cut", "from_": ["brokers"], "until": "end"}, "fault.from_"),
        ({"kind": "pause", "until": "noon"}, "fault.until is 'noon'"),
        ({"kind": "directory", "index": 3}, "fault.index is 3"),
    ],
)
def test_a_fault_with_an_unknown_value_fails(fault: dict[str, Any], unknown: str):
    with pytest.raises(UnknownInCaseError, match=unknown):
        play_fault(fault, LOSSLESS, "leader")


@pytest.mark.parametrize(
    ("expect", "unknown"),
    [
        ({}, "no expectation"),
        ({"acknowledged_consumed": False}, "expect.acknowledged_consumed is False"),
        ({**LOSSLESS, "moon": "full"}, "moon"),
        ({"done_within_s": 60}, "a reassignment is expected"),
        ({"stays_up": True}, "stays_up"),
    ],
)
def test_an_outcome_that_is_not_understood_fails(expect: dict[str, Any], unknown: str):
    with pytest.raises(UnknownInCaseError, match=unknown):
        play_fault(STOP, expect, "leader")


def test_a_target_or_a_cluster_that_is_not_understood_fails():
    for target in ("the cat", "broker_7"):
        with pytest.raises(UnknownInCaseError, match=target):
            play_fault(STOP, LOSSLESS, target)
    with pytest.raises(UnknownInCaseError, match="which broker"):
        play_fault(STOP, LOSSLESS)
    for cluster in ({"brokers": "whatever"}, {"rf": 0}, {"colour": 1}, {"replicas": [0, 9]}):
        with pytest.raises(UnknownInCaseError, match=f"{next(iter(cluster))}|cluster"):
            play_fault(STOP, LOSSLESS, "leader", **cluster)


def test_the_time_of_a_throttled_move_is_measured():
    move = {"kind": "reassign", "moves": "rotate"}
    throttled = {**move, "bytes_per_second": 40_000}
    play_fault(throttled, {"at_least_of_throttle_estimate": 0.9})
    for expect in ({"done_within_s": 1}, {"below_of_throttle_estimate": 0.9}):
        with pytest.raises(AssertionError, match="the reassignment took"):
            play_fault(throttled, expect)
    with pytest.raises(UnknownInCaseError, match="copies nothing so slowly"):
        play_fault(move, {"at_least_of_throttle_estimate": 0.9})


def test_faults_end_or_last_as_the_case_says():
    targets = ("leader", "controller")
    play_fault({"kind": "bounce", "mode": "hard", "rounds": 2}, LOSSLESS, *targets)
    play_fault(
        {"kind": "bounce", "mode": "clean", "until": "unregistered", "down_ms": 70_000},
        {"records_after_all_received": True},
        *targets,
    )
    play_fault({"kind": "pause", "down_ms": 30_000}, {"round_trip": True}, *targets)


def test_a_case_without_an_expectation_fails():
    values: dict[str, Any] = {"name": "n", "in": ELECTION}
    for nothing in (values, {**values, "expect": {}}, {**values, "expect": None}):
        with pytest.raises(
            UnknownInCaseError, match="leader_election/n: the case has no expectation"
        ):
            play("leader_election", nothing)


def test_a_word_in_the_place_of_a_number_fails():
    for key in ("assignment", "isr", "live"):
        values = {"name": "n", "in": {**ELECTION, key: ["whatever"]}, "expect": {"leader": 1}}
        with pytest.raises(UnknownInCaseError, match=f"n: in.{key}: 'whatever'"):
            play("leader_election", values)
    fields = {"fields": ["port", "colour"]}
    registration = {"version": 5, "host": "h", "port": 1, "endpoints": ["PLAINTEXT://h:1"]}
    with pytest.raises(UnknownInCaseError, match="which values have"):
        play("znode_codec", {"name": "n", "in": {**registration, **fields}, "expect": {"rack": 1}})


def test_a_topic_that_a_case_calls_unknown_is_not_created():
    error = {"error": "UNKNOWN_TOPIC_OR_PARTITION"}
    asked = {"tp": "unknown-0", "target": [1, 2]}
    play("reassignment_validation", {"name": "n", "in": asked, "expect": error})
    elected = {"partitions": ["no-such-topic-0"], "replicas": [0, 1]}
    play("elect_leaders", {"name": "n", "in": elected, "expect": error})
    grown = {"requested_total": {"unknown": 3}, "current": {"unknown": {"partitions": 1}}}
    play("create_partitions_validation", {"name": "n", "in": grown, "expect": error})


def test_all_expectations_of_old_protocol_versions_are_read():
    values: dict[str, Any] = {
        "name": "n",
        "given": {"ibp": "<2.6-IV0"},
        "calls": [
            {"add": "StopReplica", "to": [2], "partitions": ["foo-0"], "delete": True},
            {"add": "StopReplica", "to": [2], "partitions": ["bar-0"], "delete": False},
            {"flush": 1},
        ],
    }
    play("request_batch", {**values, "expect": {"to_broker_2": {"StopReplica": 2}}})
    with pytest.raises(AssertionError):
        play("request_batch", {**values, "expect": {"to_broker_2": {"StopReplica": 3}}})
    with pytest.raises(UnknownInCaseError, match="colour"):
        play("request_batch", {**values, "expect": {"colour": 1}})
    values["given"] = {"ibp": "whatever"}
    with pytest.raises(UnknownInCaseError, match="ibp 'whatever'"):
        play("request_batch", {**values, "expect": {"to_broker_2": {"StopReplica": 1}}})


def test_fields_that_were_not_read_are_named():
    with (
        pytest.raises(UnknownInCaseError, match=r"unread keys: \['b'\]"),
        Fields({"a": 1, "b": 2}, "here") as fields,
    ):
        fields.take("a")


CONSUMED: list[dict[str, Any]] = [
    {"op": "create_topic", "tp": "t-0", "replicas": [0]},
    {"op": "produce", "value": "first"},
    {"op": "consume"},
]


@pytest.mark.parametrize(
    "step",
    [
        {"op": "expect_consumed", "values": ["second"]},
        {"op": "expect_duplicates", "values": ["first"]},
        {"op": "expect_gaps", "offsets": [[0, 2]]},
        {"op": "expect_resets", "value": 1},
        {"op": "expect_truncations", "value": 1},
        {"op": "expect_refused", "offset": 0, "error": "OFFSET_OUT_OF_RANGE"},
    ],
    ids=lambda step: str(step["op"]),
)
def test_an_observation_that_no_consumer_made_fails(step: dict[str, Any]):
    with pytest.raises(AssertionError) as failure:
        run([0], {}, [*CONSUMED, step])
    assert not isinstance(failure.value, UnknownInCaseError)


def test_observations_of_a_consumer_are_found():
    seen = {"op": "expect_consumed", "values": ["first"]}
    refused = {"op": "expect_refused", "offset": 7, "error": "OFFSET_OUT_OF_RANGE"}
    run([0], {}, [*CONSUMED, seen, refused, {"op": "expect_duplicates", "values": []}])
