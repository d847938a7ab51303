"""``/regent/controller_failures``: what ended controllers; ours alone, no tool of Kafka looks."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from core.errors import BadDataError
from core.ports import ControllerFailure
from zk.fenced_writes import write_fenced
from zk.json_fields import decode_object
from zk.operations import ANY_VERSION, Create, SetData
from zk.watching_store import WatchingStore


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
    """Implements ``core.ports.FailureStore``."""

    def read_failures(self) -> Sequence[ControllerFailure]:
        """Read what ended controllers and watch the node; garbage is as good as nothing."""
        node = self._watch_node(ControllerFailuresZNode.PATH)
        try:
            return () if node is None else ControllerFailuresZNode.decode(node.data)
        except BadDataError:
            return ()

    def write_failures(self, failures: Sequence[ControllerFailure], epoch_zk_version: int) -> None:
        """Replace the list."""
        path, data = ControllerFailuresZNode.PATH, ControllerFailuresZNode.encode(failures)
        parent = path.rpartition("/")[0]
        for write in (Create(parent), Create(path), SetData(path, data, ANY_VERSION)):
            write_fenced(self._zookeeper, [[write]], epoch_zk_version)
