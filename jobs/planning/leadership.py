"""Choosing preferred leaders where the former one is no longer a replica.

Reordering replicas moves no data. The new first replica is on the broker with the fewest preferred
leaderships, so that those of a leaving broker are spread.
"""

from __future__ import annotations

from regent.jobs.planning.model import Layout


def prefer_leaders(layout: Layout) -> list[int]:
    """Reorder the rows that lost their first replica; return the new leaders by broker."""
    leaders = list(layout.brokers.leaders)
    orphaned = []
    for row in layout.changed_rows():
        before = layout.rows.replicas[row][0]
        if before in layout.replicas[row]:
            continue
        leaders[before] -= 1
        orphaned.append(row)
    for row in orphaned:
        replicas = layout.replicas[row]
        candidates = [b for b in replicas if b < layout.brokers.usable]
        first = min(candidates, key=lambda b: leaders[b]) if candidates else replicas[0]
        leaders[first] += 1
        replicas.remove(first)
        replicas.insert(0, first)
    return leaders


def keep_leaders(layout: Layout) -> list[int]:
    """Return the new leaders by broker when no row is reordered."""
    leaders = list(layout.brokers.leaders)
    for row in layout.changed_rows():
        leaders[layout.rows.replicas[row][0]] -= 1
        leaders[layout.replicas[row][0]] += 1
    return leaders
