"""Which controller event a fired watch means; each listener of ``kafka.controller`` is one line."""

from __future__ import annotations

from core.controller.events import (
    BrokerChange,
    BrokerModifications,
    ControllerChange,
    ControllerEvent,
    PartitionModifications,
    Reelect,
    TopicChange,
)
from zk.operations import WatchEvent, WatchKind
from zk.znodes import BrokerIdsZNode, ControllerZNode, TopicsZNode


def controller_event(watch: WatchEvent) -> ControllerEvent | None:
    """Return the event that ``watch`` triggers, if it triggers one."""
    parent, _, name = watch.path.rpartition("/")
    match watch.kind, parent or watch.path, name:
        case WatchKind.DELETED, _, _ if watch.path == ControllerZNode.PATH:
            return Reelect()
        case _ if watch.path == ControllerZNode.PATH:
            return ControllerChange()
        case WatchKind.CHILDREN, _, _ if watch.path == BrokerIdsZNode.PATH:
            return BrokerChange()
        case WatchKind.CHILDREN, _, _ if watch.path == TopicsZNode.PATH:
            return TopicChange()
        case WatchKind.CHANGED, BrokerIdsZNode.PATH, _ if name.isdecimal():
            return BrokerModifications(int(name))
        # A deletion too: the topic may be there again, and no list of names would tell.
        case WatchKind.CHANGED | WatchKind.DELETED, TopicsZNode.PATH, _:
            return PartitionModifications(name)
        case _:
            return None
