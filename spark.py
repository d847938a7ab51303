"""``from regent import spark``: what Regent places and knows, as DataFrames of a session.

``register(session)`` makes the format ``regent`` known: Spark finds that of an installed Regent by
itself, but not that of a checkout.
"""

from __future__ import annotations

from regent.jobs.frames import assignment, events, place, topics
from regent.jobs.source import register, write_once
from regent.jobs.tables import write_table

__all__ = ["assignment", "events", "place", "register", "topics", "write_once", "write_table"]
