"""What the death of a broker costs in each design of replication, as it was measured once.

The designs are a study in a checkout, ``python -m regent.designs``; docs/designs.md explains them.
An installed console has only these figures.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PARTITIONS: Final = 1_000
BROKERS: Final = 3


class DesignReplay(NamedTuple):
    """One design: what ZooKeeper counted, and when the partitions had leaders and all knew them."""

    name: str
    title: str
    watches_fired: int
    requests: int
    watches_at_rest: int
    led_ms: int
    known_ms: int


REPLAYS: Final = (
    DesignReplay(
        "v1, name lock", "every replica watches its leader's lock", 895, 3_314, 6_009, 1_096, 1_145
    ),
    DesignReplay(
        "v1, sequential lock",
        "every replica watches the one before it",
        616,
        5_778,
        5_009,
        1_363,
        1_568,
    ),
    DesignReplay(
        "v2", "every replica races; the leader commands", 1_250, 4_514, 3_015, 1_100, 1_102
    ),
    DesignReplay("v3", "one controller decides: this cluster", 2, 15, 20, 46, 200),
)
"""From the table of docs/designs.md."""

_PER_ROW: Final = 100
_STEP: Final = 9


class Dots(NamedTuple):
    """A drawing of dots: full rows, and a last one; sizes are in its own coordinates."""

    width: int
    height: int
    full_height: int
    last_width: int


def dots_of(count: int) -> Dots:
    """Return the drawing of so many dots, a hundred in each row."""
    full, last = divmod(count, _PER_ROW)
    rows = full + (last > 0)
    return Dots(_PER_ROW * _STEP, rows * _STEP, full * _STEP, last * _STEP)
