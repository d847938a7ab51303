"""A case of the coordinators that the runner does not check completely must not pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.coordinators.play import SUITES, play
from tests.conformance.fields import UnknownInCaseError


def a_case(suite: str = "hash", **keys: Any) -> dict[str, Any]:
    case = {
        "group": suite,
        "name": f"{suite}/x",
        "src": "derived",
        "given": {"key": "k", "partitions": 2} if suite == "hash" else {},
        "when": [{"do": "hash"}] if suite == "hash" else [],
        "expect": {"partition": 1} if suite == "hash" else {},
    }
    return {**case, **keys}


def test_a_case_that_is_understood_passes():
    play(a_case())


@pytest.mark.parametrize(
    "keys",
    [
        {"note": "more"},
        {"suite": "other"},
        {"given": {"key": "k", "partitions": 2, "more": 1}},
        {"when": [{"do": "hash", "more": 1}]},
        {"when": [{"do": "hash"}, {"do": "check", "expect": {}, "more": 1}]},
    ],
    ids=["of a case", "the suite", "given", "of a step", "of a check"],
)
def test_an_unknown_key_is_an_error(keys: dict[str, Any]):
    with pytest.raises(UnknownInCaseError):
        play(a_case(**keys))


@pytest.mark.parametrize("suite", sorted(set(SUITES) - {"hash", "records", "cleanable"}))
def test_every_suite_knows_its_verbs_and_what_is_seen(suite: str):
    with pytest.raises(UnknownInCaseError):
        play(a_case(suite, when=[{"do": "no such verb"}]))
    with pytest.raises(UnknownInCaseError):
        play(a_case(suite, expect={"no such thing": 1}))
    with pytest.raises(UnknownInCaseError):
        play(a_case(suite, given={"no such setting": 1}))


def test_a_key_inside_an_object_must_be_read_too():
    log = {"start": 0, "end": 0, "stable": 0, "segments": [{"base": 0, "size": 0}]}
    log["segments"][0] |= {"largest_time": 0, "first_time": 0, "more": 1}  # type: ignore[index]
    with pytest.raises(UnknownInCaseError, match=r"logs\.a\.segments\.more"):
        play(a_case("cleanable", given={"now": 0, "logs": {"a": log}}))


@pytest.mark.parametrize(
    "expect",
    [
        {"answers": {"h": {"error": "NONE"}}},
        {"answers": {"h": {"nothing": 1}}},
        {"answers": {"i": {"error": "UNKNOWN_MEMBER_ID"}}},
        {"state": {"g": {"size": 1}}},
        {"pending": ["h"]},
    ],
)
def test_an_expectation_that_is_not_met_fails(expect: dict[str, Any]):
    heartbeat = {"do": "heartbeat", "member": "m", "generation": 1}
    play(a_case("group", when=[{**heartbeat, "as": "h"}], expect={"pending": []}))
    with pytest.raises(AssertionError):
        play(a_case("group", when=[{**heartbeat, "as": "h"}], expect=expect))


def test_a_step_without_an_expectation_must_succeed():
    with pytest.raises(AssertionError, match="UNKNOWN_MEMBER_ID"):
        play(a_case("group", when=[{"do": "heartbeat", "member": "m", "generation": 1}]))
