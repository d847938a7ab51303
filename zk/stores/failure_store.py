"""``/regent/controller_failures``: the failures that ended controllers; Kafka has no such znode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import orjson

from regent.core.errors import BadDataError
from regent.core.ports import ControllerFailure
from regent.zk.client.operations import Create, Operation, SetData, Znode
from regent.zk.codecs.json_fields import decode_object
from regent.zk.stores.fenced_writes import WriteRefused
from regent.zk.stores.watching_store import WatchingStore

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5


class ControllerFailuresZNode:
    """``/regent/controller_failures``, a short list."""

    PATH = "/regent/controller_failures"

    @staticmethod
    def encode(failures: Sequence[ControllerFailure]) -> bytes:
        """Encode as version 1."""
        return orjson.dumps({"version": 1, "failures": [f._asdict() for f in failures]})

    @staticmethod
    def decode(data: bytes) -> tuple[ControllerFailure, ...]:
        """Return the failures, oldest first."""
        rows = decode_object(data, ControllerFailuresZNode.PATH).objects("failures")
        return tuple(
            ControllerFailure(
                row.string("what"),
                row.string("event"),
                row.string("error"),
                row.integer("controllers"),
                row.integer("broker_id"),
                row.integer("controller_epoch"),
            )
            for row in rows
        )


class ZkFailureStore(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about failures of controllers."""

    def read_failures(self) -> Sequence[ControllerFailure]:
        """Read the failures that ended controllers and watch the node; bad data counts as none."""
        return _failures_in(self._watch_node(ControllerFailuresZNode.PATH))

    def change_failures(
        self,
        change: Callable[[Sequence[ControllerFailure]], Sequence[ControllerFailure]],
        epoch_zk_version: int,
    ) -> None:
        """Replace the list by the result of ``change``, if it did not change since it was read."""
        path = ControllerFailuresZNode.PATH
        parent = path.rpartition("/")[0]
        for _ in range(MAX_ATTEMPTS):
            node = self._watch_node(path)
            failures = _failures_in(node)
            changed = change(failures)
            if list(changed) == list(failures):
                return
            data = ControllerFailuresZNode.encode(changed)
            if node is None:
                self._write_fenced([[Create(parent)]], epoch_zk_version)
                write: Operation = Create(path, data)
            else:
                write = SetData(path, data, node.stat.version)
            (outcome,) = self._write_fenced([[write]], epoch_zk_version)
            if not isinstance(outcome, WriteRefused):
                return
        log.warning("%s was not written: another client changed it, or it cannot be read", path)


def _failures_in(node: Znode | None) -> Sequence[ControllerFailure]:
    try:
        return () if node is None else ControllerFailuresZNode.decode(node.data)
    except BadDataError:
        return ()
