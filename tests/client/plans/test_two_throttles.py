"""Two plans with a throttle at once, on the same brokers: nothing of them stays behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from regent.client.move_throttle import RATES, add_throttle, remove_throttle
from regent.client.moves import Move
from regent.core.model import TopicPartition
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_zookeeper import Call, FakeZooKeeper, Hook
from tests.support.plan_controller import BEFORE, TARGET


class ThrottledPlan:
    """A plan that moves one partition."""

    def __init__(self, cluster: FakeCluster, topic: str, rate: int) -> None:
        self._cluster = cluster
        self._moves = [Move(TopicPartition(topic, 0), BEFORE, TARGET)]
        self._rate = rate
        self._note = b""

    def _keep(self, note: bytes) -> None:
        self._note = note

    def begin(self, hook: Hook | None = None) -> None:
        """Set the throttle."""
        configs = ZkConfigStore(FakeZooKeeper(self._cluster.zookeeper, hook=hook))
        add_throttle(configs, self._moves, self._rate, self._keep)

    def end(self, hook: Hook | None = None) -> None:
        """Remove it, as often as it is asked to."""
        configs = ZkConfigStore(FakeZooKeeper(self._cluster.zookeeper, hook=hook))
        remove_throttle(configs, self._note)


def config(cluster: FakeCluster, entity: str) -> dict[str, str]:
    node = cluster.zookeeper.snapshot().get(f"/config/{entity}")
    return {} if node is None else ConfigEntityZNode.decode(node.data)


def is_clean(cluster: FakeCluster) -> bool:
    entities = [f"brokers/{broker}" for broker in range(4)] + ["topics/t", "topics/u"]
    return not any(config(cluster, entity) for entity in entities)


@pytest.fixture
def plans(cluster: FakeCluster) -> tuple[ThrottledPlan, ThrottledPlan]:
    for topic in ("t", "u"):
        cluster.put_topic(topic, {0: BEFORE})
    return ThrottledPlan(cluster, "t", 1000), ThrottledPlan(cluster, "u", 500)


@pytest.mark.parametrize("is_first_the_first", [False, True])
def test_whichever_ends_first_the_rate_of_the_other_goes_with_it(
    cluster: FakeCluster, plans: tuple[ThrottledPlan, ThrottledPlan], *, is_first_the_first: bool
) -> None:
    first, second = plans
    first.begin()
    second.begin()
    last = second if is_first_the_first else first
    (first if is_first_the_first else second).end()
    rate = "500" if is_first_the_first else "1000"
    assert config(cluster, "brokers/2") == dict.fromkeys(RATES, rate)
    last.end()
    assert is_clean(cluster)


def test_a_rate_that_was_there_before_both_comes_back(
    cluster: FakeCluster, plans: tuple[ThrottledPlan, ThrottledPlan]
) -> None:
    path = ConfigEntityZNode.path("brokers", "2")
    cluster.zookeeper.put(path, ConfigEntityZNode.encode({RATES[0]: "77"}))
    for plan in plans:
        plan.begin()
    for plan in reversed(plans):
        plan.end()
    assert config(cluster, "brokers/2") == {RATES[0]: "77"}


def test_a_rate_for_replicas_of_others_that_are_still_listed_comes_back(
    cluster: FakeCluster, plans: tuple[ThrottledPlan, ThrottledPlan]
) -> None:
    plan = plans[1]
    everywhere = {"leader.replication.throttled.replicas": "*"}
    cluster.zookeeper.put("/config/brokers/0", ConfigEntityZNode.encode({RATES[0]: "77"}))
    cluster.zookeeper.put("/config/topics/t", ConfigEntityZNode.encode(everywhere))
    plan.begin()
    plan.end()
    assert config(cluster, "brokers/0") == {RATES[0]: "77"}


@pytest.mark.parametrize(
    "case", ["end/end", "end/begin", "begin/end", "begin/begin", "end of second/end"]
)
def test_whatever_the_other_plan_does_during_a_step_nothing_stays_behind(
    cluster: FakeCluster, plans: tuple[ThrottledPlan, ThrottledPlan], case: str
) -> None:
    """It does it as a whole before each call of the first, in turn."""
    first, second = plans
    step, other = {
        "end/end": (first.end, second.end),
        "end/begin": (first.end, second.begin),
        "begin/end": (second.begin, first.end),
        "begin/begin": (second.begin, first.begin),
        "end of second/end": (second.end, first.end),
    }[case]
    for number in count(1):
        if case != "begin/begin":
            first.begin()
        if "begin" not in case:
            second.begin()
        calls = count(1)
        step(partial(_interfere, calls, number, other))
        is_over = next(calls) <= number
        if is_over:
            other()
        if case == "begin/begin":
            first.end()
        second.end()
        assert is_clean(cluster), number
        if is_over:  # there were fewer calls
            break
    assert number > 8


def _interfere(calls: Iterator[int], number: int, other: Callable[[], None], _: Call) -> None:
    if next(calls) == number:
        other()
