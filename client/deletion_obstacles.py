"""Reasons why topics that are marked for deletion still exist."""

from __future__ import annotations

from collections.abc import Collection

from regent.client.live_brokers import read_live_brokers
from regent.client.wording import listed
from regent.core.errors import BadDataError
from regent.core.protocol.controller import DescribeControllerResponse
from regent.zk.stores.admin_store import ZkAdminStore


def deletion_obstacles(
    admin: ZkAdminStore, topics: Collection[str], controller: DescribeControllerResponse | None
) -> dict[str, str]:
    """Return what each topic waits for; ``controller``: the controller's answer, if it answered."""
    live = read_live_brokers(admin)
    assignments = admin.topics.read_topics(topics)
    obstacles = {}
    for topic in topics:
        assignment = assignments.get(topic)
        if isinstance(assignment, BadDataError):
            obstacles[topic] = str(assignment)
            continue
        partitions = [] if assignment is None else list(assignment.partitions.values())
        down = sorted({r for p in partitions for r in p.replicas if r not in live})
        if down:
            brokers = f"broker {down[0]} is" if len(down) == 1 else f"brokers {listed(down)} are"
            obstacles[topic] = f"{brokers} down; replicas there cannot be deleted"
        elif any(partition.is_being_reassigned for partition in partitions):
            obstacles[topic] = "partitions of it are being reassigned"
        else:
            obstacles[topic] = _of_controller(topic, controller, are_known=bool(partitions))
    return obstacles


def _of_controller(
    topic: str, controller: DescribeControllerResponse | None, *, are_known: bool
) -> str:
    if controller is None:
        return "the controller does not answer"
    if topic in controller.topics_ineligible_for_deletion:
        if not are_known:  # brokers were asked, and have forgotten where the replicas are
            return "a replica could not be deleted: its broker is down, or the log of that says why"
        return "a replica could not be deleted; the log of its broker says why"
    if topic in controller.topics_to_be_deleted:
        return "its replicas are being deleted"
    return "the controller has not begun"
