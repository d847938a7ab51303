"""What is said of the designs, and whether the numbers bear it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from regent.designs.measuring.comparison import DesignComparison, DesignResult

_QUEUE_OPERATIONS: Final = 6
_NOTHING: Final = 0.01
"""Less than this for each partition is nothing: a cluster has a few watches and writes anyway."""

_WITH_A_TASK: Final = 2
"""The other replicas of a partition: so many must hear of a new leader."""

Number: TypeAlias = float | bool


class Claim(NamedTuple):
    """A claim, the numbers about it, and whether they bear it out; None: it was not measured."""

    claim: str
    numbers: str
    is_borne_out: bool | None


class _Check(NamedTuple):
    """A claim about the designs in ``needs``, and how to check it.

    ``number`` returns the number of one design, which is called ``unit``.
    """

    claim: str
    unit: str
    needs: Sequence[str]
    number: Callable[[DesignResult], Number | None]
    holds: Callable[[Mapping[str, Number]], bool]


def check_claims(comparison: DesignComparison) -> list[Claim]:
    """Return every claim, also those that need a design that was not measured."""
    return [_checked(check, comparison.designs) for check in _CHECKS]


def _checked(check: _Check, results: Mapping[str, DesignResult]) -> Claim:
    numbers: dict[str, Number] = {}
    for design, result in results.items():
        number = check.number(result)
        if number is not None:
            numbers[design] = number
    shown = ", ".join(f"{design} {_shown(number)}" for design, number in numbers.items())
    holds = check.holds(numbers) if set(check.needs) <= numbers.keys() else None
    return Claim(check.claim, f"{check.unit}: {shown or 'not measured'}", holds)


def _shown(number: Number) -> str:
    if isinstance(number, bool):
        return "yes" if number else "no"
    return f"{number:,.4g}" if number < 1000 else f"{number:,.0f}"


# --- numbers --------------------------------------------------------------------------------------


def _fired_for_one_leader(result: DesignResult) -> Number:
    return result.leader_change.zookeeper.watches_fired


def _fired_for_each_broker(result: DesignResult) -> Number:
    return result.failure.zookeeper.watches_fired / result.failure.case.failures


def _listeners_for_each_leader(result: DesignResult) -> Number | None:
    called = result.failure.listeners_called
    return None if called is None else called / max(result.failure.led_by_dead, 1)


def _more_fired_with_partitions(result: DesignResult) -> Number:
    more = _fired_for_each_broker(result) - _fired_for_one_leader(result)
    return more / result.failure.case.partitions


def _watches_of_a_partition(result: DesignResult) -> Number:
    more = result.failure.rest.watches - result.leader_change.rest.watches
    return more / max(result.failure.case.partitions - 1, 1)


def _writes_of_a_partition(result: DesignResult) -> Number:
    return result.failure.zookeeper.write_requests / result.failure.case.partitions


def _cost_of_the_controller(result: DesignResult) -> Number | None:
    if result.controller_failure is None:
        return None
    usual = max(result.failure.zookeeper.znodes_read, 1)
    return result.controller_failure.zookeeper.znodes_read / usual


def _is_brain_split(result: DesignResult) -> Number | None:
    return None if result.believers is None else result.believers.has_acknowledged


def _operations_of_a_change(result: DesignResult) -> Number | None:
    return None if result.state_change is None else result.state_change.zookeeper_operations


_CHECKS: Final = (
    _Check(
        "Herd effect of a lock: all who want it wake when its holder dies; with sequential"
        " candidates only the next one.",
        "watches that fire for one leader",
        ("v1-name", "v1-sequential"),
        _fired_for_one_leader,
        lambda of: of["v1-name"] > of["v1-sequential"],
    ),
    _Check(
        "Herd effect of a broker: its death wakes watchers for each partition that it led. With a"
        " controller it wakes only that one.",
        "watches that fire for one dead broker",
        ("v1-name", "v3"),
        _fired_for_each_broker,
        lambda of: of["v1-name"] > of["v3"],
    ),
    _Check(
        "A dead broker wakes every replica of every live broker, though it led only some of the"
        " partitions.",
        "actors told, for each partition that it led",
        ("v1-name", "v1-sequential"),
        _listeners_for_each_leader,
        lambda of: min(of["v1-name"], of["v1-sequential"]) > _WITH_A_TASK,
    ),
    _Check(
        "With a controller, no more watches fire because there are more partitions.",
        "more watches that fire for each partition",
        ("v3",),
        _more_fired_with_partitions,
        lambda of: of["v3"] < _NOTHING,
    ),
    _Check(
        "Watch load: every replica of every partition has watches. With a controller there are no"
        " watches on partitions.",
        "watches for each partition",
        ("v1-name", "v3"),
        _watches_of_a_partition,
        lambda of: of["v1-name"] >= 1 and of["v3"] < _NOTHING,
    ),
    _Check(
        "A controller writes many new leaders in one request.",
        "requests to write for each partition",
        ("v3",),
        _writes_of_a_partition,
        lambda of: of["v3"] < 1,
    ),
    _Check(
        "The price of a controller: when it dies itself, the next one reads every partition.",
        "znodes read, against the death of another broker",
        ("v3",),
        _cost_of_the_controller,
        lambda of: of["v3"] > 1,
    ),
    _Check(
        "Split brain: a leader that lost its session in a pause acknowledges a record that nobody"
        " else has, although another one leads. With a controller and leader epochs it does not.",
        "acknowledged",
        ("v1-name", "v3"),
        _is_brain_split,
        lambda of: bool(of["v1-name"]) and not of["v3"],
    ),
    _Check(
        f"Six against one: a change of a state takes {_QUEUE_OPERATIONS} operations or more through"
        " a queue in ZooKeeper, and none, but one request, from a controller.",
        "operations in ZooKeeper",
        ("v2", "v3"),
        _operations_of_a_change,
        lambda of: of["v2"] >= _QUEUE_OPERATIONS and of["v3"] == 0,
    ),
)
