"""The designs that can be compared, by the names that the command takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from regent.designs.measuring.earlier_cluster import EarlierCluster
from regent.designs.measuring.measured_cluster import Factory
from regent.designs.measuring.v3_cluster import V3Cluster


class MeasuredDesign(NamedTuple):
    """A design: one sentence about it, and how to start a cluster of it."""

    meaning: str
    start: Factory
    has_controller: bool = False


DESIGNS: Final[Mapping[str, MeasuredDesign]] = {
    "v1-name": MeasuredDesign(
        "Every replica watches ZooKeeper itself. The first to create the ephemeral znode of a"
        " partition leads it; all others watch this znode.",
        partial(EarlierCluster, "v1-name"),
    ),
    "v1-sequential": MeasuredDesign(
        "As v1-name, but each candidate has an ephemeral znode with a number, and watches only the"
        " one before it.",
        partial(EarlierCluster, "v1-sequential"),
    ),
    "v2": MeasuredDesign(
        "The leader of a partition decides for it, and tells other brokers by a queue in ZooKeeper"
        " for each broker.",
        partial(EarlierCluster, "v2"),
    ),
    "v3": MeasuredDesign(
        "One broker is the controller: it elects all leaders and tells the brokers by requests.",
        V3Cluster,
        has_controller=True,
    ),
}
