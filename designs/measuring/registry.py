"""The designs that can be compared, by the names that the command takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from regent.designs.measuring.measured_cluster import Factory
from regent.designs.measuring.v3_cluster import V3Cluster


class MeasuredDesign(NamedTuple):
    """A design: one sentence about it, and how to start a cluster of it."""

    meaning: str
    start: Factory
    has_controller: bool = False


DESIGNS: Final[Mapping[str, MeasuredDesign]] = {
    "v3": MeasuredDesign(
        "One broker is the controller: it elects all leaders and tells the brokers by requests.",
        V3Cluster,
        has_controller=True,
    ),
}
