"""Topic ids, and losses by elections: the groups ``topic_id`` and ``unclean_scenario``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.messages.topics import CreatableTopicConfig
from regent.zk.znodes import DeleteTopicsTopicZNode
from tests.conformance.fields import Case, Fields, UnknownInCaseError, check_words
from tests.conformance.scenarios import run
from tests.conformance.stage import MovedLog, Stage
from tests.conformance.topic_requests import Desk
from tests.support.topic_requests import assigned, creatable

UNCLEAN = "unclean.leader.election.enable"
_IBP = r"latest|newest|old|\d+\.\d+(?:-IV\d+)?(?: ?(?:->|to|then|,) ?\d+\.\d+(?:-IV\d+)?)?"
_STEP_WORDS = (
    "create delete add expand topic topics partition partitions controller shutdown shut down move"
    " moves failover change new another restart upgrade broker brokers cluster rolling again more"
    " 2.6 2.7 2.8"
)


class Ids:
    """A cluster with topics; ids are those of ZooKeeper and of the controller."""

    def __init__(self, log: MovedLog, brokers: int) -> None:
        with Fields({}, "config") as config:
            self.stage = Stage(list(range(brokers)), config, log, starts_itself=False)
        self.cluster = self.stage.cluster
        self.seen: dict[str, str | None] = {}  # the id after each step, by the key of its name

    def known(self, topic: str) -> str | None:
        """Return a topic's id; the controller and the znode agree, both ways."""
        stored = self.stage.topic(topic)
        context = self.stage.context
        topic_id = context.topic_id(topic)
        assert topic_id == (None if stored is None else stored.topic_id)
        assert topic_id is None or context.topic_name(topic_id) == topic
        return topic_id

    def create(self, topic: str) -> None:
        """Create a topic as a tool that knows no ids."""
        replicas = tuple(sorted(self.cluster.brokers))[:1]
        self.cluster.put_topic(topic, {0: replicas})
        self.stage.settle()

    def perform(self, step: str, topic: str) -> str:
        """Do one step with an existing topic; return the case's name of the time after it."""
        text = step.lower()
        if "add" in text or "expan" in text:
            stored = self.stage.topic(topic)
            assert stored is not None
            replicas = stored.partitions[0].replicas
            self.cluster.rewrite_topic(topic, {0: replicas, 1: replicas})
            self.stage.settle()
            return "after_add"
        if "delete" in text:
            self.cluster.zookeeper.put(DeleteTopicsTopicZNode.path(topic))
            self.stage.settle()
            return "after_delete"
        if "controller" in text:
            self.stage.shut_down(self.stage.controller.broker_id, "controlled")
            self.stage.settle()
            return "new_controller"
        if "restart" in text or "upgrade" in text:
            for broker_id in list(self.cluster.brokers):
                self.stage.shut_down(broker_id, "controlled")
                self.stage.start(broker_id)
            self.stage.settle()
            return "after"
        raise UnknownInCaseError(f"step {step!r}")


def topic_id(case: Case) -> None:
    """Old versions of the inter-broker protocol, without ids, do not exist here.

    A case of such a version that expects no id gets the usual ones, except for the topic that a
    broker of the old version created before the others started: it gets its id then.
    """
    with case.nested("in") as given, case.nested("expect") as expect:
        versions = given.take("ibp", "2.8")
        for version in versions if isinstance(versions, list) else [versions]:
            if not re.fullmatch(_IBP, str(version)):
                raise UnknownInCaseError(f"ibp {versions!r}")
        steps, topics = given.take("steps", ["create"]), given.take("create", ["t1"])
        for step in steps:
            check_words(step, "step", " ".join([_STEP_WORDS, *(t.lower() for t in topics)]))
        is_old = _is_old(versions)
        is_upgrade = not isinstance(versions, str) or ("2.7" in versions and "2.8" in versions)
        with MovedLog() as log:
            ids = Ids(log, brokers=1 if _restarts(steps) else 2)
            if is_upgrade:
                _create_before_other_brokers_start(ids, topics[0])
                steps = [step for step in steps if "create" not in step.lower()]
            seen = _look_at(ids, topics, steps)
            _assert_ids(ids, topics, seen, expect, is_old=is_old and not is_upgrade)


def _is_old(versions: Any) -> bool:
    first = versions[0] if isinstance(versions, list) else versions
    return str(first).startswith(
        ("0.", "1.", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7")
    )


def _restarts(steps: list[str]) -> bool:
    return any("restart" in step.lower() or "upgrade" in step.lower() for step in steps)


def _create_before_other_brokers_start(ids: Ids, topic: str) -> None:
    for broker_id in list(ids.cluster.brokers):
        ids.stage.shut_down(broker_id, "controlled")
    ids.cluster.put_topic(topic, {0: (0,)})
    stored = ids.stage.topic(topic)
    assert stored is not None
    ids.seen["before"] = stored.topic_id
    ids.stage.start(0)
    ids.stage.settle()


def _look_at(ids: Ids, topics: list[str], steps: list[str]) -> dict[str, str | None]:
    """Do every step; return the first topic's id at every time."""
    seen: dict[str, str | None] = {"before": None, **ids.seen}
    for step in steps:
        if "create" in step.lower():
            ids.create(topics[0])
            seen["after_create"] = seen["first"] = ids.known(topics[0])
            for topic in topics[1:]:
                ids.create(topic)
        else:
            when = ids.perform(step, topics[0])
            seen[when] = ids.known(topics[0])
    seen.setdefault("after", ids.known(topics[0]))
    return seen


def _assert_ids(
    ids: Ids,
    topics: list[str],
    seen: Mapping[str, str | None],
    expect: Fields,
    *,
    is_old: bool,
) -> None:
    meanings: dict[str, str | None] = {}
    for key in ("before", "after_create", "after_add", "after_delete", "new_controller", "after"):
        for symbol in expect.expected(key):
            if symbol is None and is_old and key not in ("before", "after_delete"):
                assert seen[key] is not None
            elif symbol is None or isinstance(symbol, str):
                assert (seen[key] is None) is (symbol is None or symbol in ("none", "absent"))
                assert symbol is None or meanings.setdefault(symbol, seen[key]) == seen[key]
            else:
                raise UnknownInCaseError(f"{key} is {symbol!r}")
    assert len(set(meanings.values())) == len(meanings), f"not different: {meanings}"
    now = [ids.known(topic) for topic in topics]
    for distinct in expect.expected("distinct"):
        assert (None not in now and len(set(now)) == len(now)) is distinct
    for unchanged in expect.expected("t1_unchanged_by_t2"):
        assert (now[0] == seen["first"]) is unchanged
    for works in expect.expected("reverse_lookup"):
        found = [ids.stage.context.topic_name(topic_id or "") for topic_id in now]
        assert (found == topics) is works
    if "after_delete" not in seen:
        assert seen.get("first") in (None, now[0])


# --- unclean elections ----------------------------------------------------------------------------


def unclean_scenario(case: Case) -> None:
    with case.nested("config") as config:
        by_default = config.take("broker", False)
        if by_default not in (None, False, True):
            raise UnknownInCaseError(f"unclean elections are {by_default!r}")
        by_topic = config.take("topic", None)
        is_controlled = config.take("controlled.shutdown.enable", True)
    steps: list[Mapping[str, Any]] = case.take("steps")
    if any("expect_error" in step for step in steps):
        _refuse_topic(steps, by_topic)
        return
    settings = {UNCLEAN: by_default, "controlled.shutdown.enable": is_controlled}
    if by_topic is not None:
        configured = {"op": "set_topic_config", UNCLEAN: by_topic}
        steps = [steps[0], configured, *steps[1:]]
    run([0, 1], settings, steps)


def _refuse_topic(steps: list[Mapping[str, Any]], setting: Any) -> None:
    (step,) = steps
    with Fields(step, "step") as fields:
        assert fields.take("op") == "create_topic"
        replicas = tuple(fields.take("replicas"))
        name = fields.take("tp").rpartition("-")[0]
        wanted = creatable(
            name,
            assignments=assigned((0, replicas)),
            configs=(CreatableTopicConfig(name=UNCLEAN, value=str(setting)),),
        )
        desk = Desk({0, *replicas})
        assert desk.create(wanted) is Errors[fields.take("expect_error")]
        assert desk.topic(name) is None
        assert desk.cluster.state(TopicPartition(name, 0)) is None
