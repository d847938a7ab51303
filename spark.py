"""``regent.spark.register(session)``: topics as DataFrames, by the format ``regent``.

Spark finds the format of an installed Regent by itself, but not that of a checkout.
"""

from __future__ import annotations

from regent.jobs.source import register, write_once

__all__ = ["register", "write_once"]
