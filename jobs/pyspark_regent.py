"""Makes Spark find the data source ``regent``: it imports every module ``pyspark_*`` for that.

An installed Regent has this module at the top level, so that ``spark.read.format("regent")`` works
without a registration. If a package that the data source needs is missing, Spark must still find
the data sources of others.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from regent.jobs.source import RegentDataSource

    DefaultSource = RegentDataSource
