"""Forks the Python workers of the placement service, which have imported everything then.

Spark ends a worker that was idle for a minute. A worker of Spark's own daemon would first import
numpy and PyArrow, and read PySpark's archive several times.
"""

from __future__ import annotations

import gc
import sys

import numpy.ma  # noqa: F401  PyArrow imports it late
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import regent.jobs.placement_job  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # workers collect garbage after each task: not these modules
    sys.path_importer_cache.clear()  # each worker reads again what is in it
    manager()
