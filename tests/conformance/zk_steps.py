"""Sequences of calls to ZooKeeper: states, the controller, its epoch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from regent.core.model import LeaderAndIsr, LeaderIsrAndControllerEpoch
from regent.core.ports import ControllerEpoch, WriteError
from regent.zk.client.operations import Create, Refused, SetData
from regent.zk.znodes import (
    ControllerEpochZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.conformance.fields import Fields, UnknownInCaseError, partition
from tests.conformance.zk_client import CODES, Client

_CALLS = (
    r"set \d+ expecting v\d+",
    r"create \d+",
    r"register \d+(?: and bump epoch)?",
    r"delete(?: with that zkVersion)?",
    "get|get id",
)


def run_steps(client: Client, steps: list[Mapping[str, Any]]) -> None:
    """Do one step after the other on a new tree."""
    script = Script(client)
    for step in steps:
        with Fields(step, "step") as fields:
            script.run(fields)


class Script:
    """Calls one after the other on one tree."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._registered: ControllerEpoch | None = None
        self._is_fresh = True

    def run(self, fields: Fields) -> None:
        """Do one step and compare its outcome."""
        if "call" in fields:
            self._call(fields.take("call"), fields)
        elif "codes" in fields:
            self._states(fields)
        elif "create" in fields:
            names = fields.take("create")
            if isinstance(names, Mapping):
                data = ReassignPartitionsZNode.encode({partition(n): r for n, r in names.items()})
                operation = Create(ReassignPartitionsZNode.PATH, data)
            else:
                data = PreferredReplicaElectionZNode.encode(map(partition, names))
                operation = Create(PreferredReplicaElectionZNode.PATH, data)
            assert self._multi(operation) == fields.take("result")
        else:
            raise UnknownInCaseError("a step without a known call")

    def _multi(self, operation: Create | SetData) -> str:
        result = self.client.session.multi([operation])
        return result.error.name.replace("_", "") if isinstance(result, Refused) else "OK"

    def _states(self, fields: Fields) -> None:
        """Create or replace states; each has its own result."""
        is_creation = "create" in fields
        names = fields.take("create") if is_creation else fields.take("set")
        versions = fields.take("zk_version", {})
        store, epoch = self.client.store, self.client.epoch_zk_version
        states: dict[Any, LeaderIsrAndControllerEpoch] = {}
        for name in names:
            where = partition(name)
            if is_creation and self.client.node(TopicZNode.path(where.topic)) is None:
                self.client.put_topic(where.topic, {where.partition: (0, 1)})
            there = self.client.state(where)
            known = 0 if there is None else there.leader_and_isr.partition_epoch
            version = versions.get(name, known) if isinstance(versions, Mapping) else versions
            states[where] = LeaderIsrAndControllerEpoch(LeaderAndIsr(0, (0, 1), 0, version), 1)
        write = store.create_partition_states if is_creation else store.update_partition_states
        outcomes = write(states, epoch)
        codes = [CODES[o] if isinstance(o, WriteError) else "OK" for o in outcomes.values()]
        assert codes == fields.take("codes")
        fields.take("client", None)  # every client may write
        fields.take("by", None)
        for key in ("version", "versions"):
            for expected in fields.expected(key):
                found = [o for o in outcomes.values() if not isinstance(o, WriteError)]
                wanted = [expected] * len(found) if isinstance(expected, int) else expected
                assert found == wanted

    def _call(self, call: str, fields: Fields) -> None:
        """Run a sentence about ``/controller`` and ``/controller_epoch``."""
        store, session = self.client.store, self.client.session
        path = ControllerEpochZNode.PATH
        if self._is_fresh and "register" not in call:
            self.client.remove(path)  # these cases begin without one
        self._is_fresh = False
        result: Any
        words = call.split()
        if not any(re.fullmatch(known, call) for known in _CALLS):
            raise UnknownInCaseError(f"call {call!r}")
        if words[0] == "set":
            value, version = int(words[1]), int(words[-1].removeprefix("v"))
            result = self._multi(SetData(path, ControllerEpochZNode.encode(value), version))
        elif words[0] == "create":
            result = self._multi(Create(path, ControllerEpochZNode.encode(int(words[1]))))
        elif words[0] == "register":
            store.create_controller_epoch()
            current = store.read_controller_epoch()
            assert current is not None
            self._registered = store.register_controller(int(words[1]), current, now_ms=0)
            assert self._registered is not None
            result = "OK"
        elif words[0] == "delete":
            assert self._registered is not None
            store.delete_controller(self._registered.zk_version)
            result = "OK"
        elif call == "get id":
            controller = store.read_controller()
            result = None if controller is None else controller.broker_id
        elif call == "get":
            epoch = store.read_controller_epoch()
            node = session.get(path)
            result = None if epoch is None or node is None else tuple(epoch)
        else:
            raise UnknownInCaseError(f"call {call!r}")
        self._assert_result(result, fields)

    def _assert_result(self, result: Any, fields: Fields) -> None:
        for key in ("result", "code", "codes", "returned", "id"):
            for expected in fields.expected(key):
                if isinstance(result, tuple) and isinstance(expected, Mapping):
                    assert dict(zip(("epoch", "version"), result, strict=True)) == expected
                elif isinstance(result, tuple) and isinstance(expected, int):
                    assert result[0] == expected
                elif isinstance(result, tuple):
                    assert list(result) == expected
                else:
                    assert result == expected
        for expected in fields.expected("epoch"):
            assert result[0] == expected
        for key in ("version", "zk_version"):
            for expected in fields.expected(key):
                node = self.client.node(ControllerEpochZNode.PATH)
                assert (None if node is None else node.stat.version) == expected
