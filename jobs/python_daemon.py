"""Forks the Python workers of the placement service, which have imported everything then.

Spark ends a worker that was idle for a minute. The next one imports numpy and PyArrow for a second.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

import regent.jobs.placement_job  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # workers collect garbage after each task: not these modules
    manager()
