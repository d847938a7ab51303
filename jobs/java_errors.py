"""Errors of the JVM and of Python workers, without stack traces."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException

_CAUSED_BY: Final = "Caused by: "
_TRACEBACK: Final = "Traceback (most recent call last):"


def explanation(error: Py4JJavaError | PySparkException) -> str:
    """Return the innermost cause in one line, which only a JVM that still runs can tell.

    Causes on the driver are objects; the text of the last one has those of a task.
    """
    if isinstance(error, PythonException):
        return _error_of_worker(str(error))
    if isinstance(error, PySparkException):
        return str(error).partition("\n")[0]
    cause = error.java_exception
    while (inner := cause.getCause()) is not None:
        cause = inner
    text = str(cause.toString())
    if _TRACEBACK in text:
        return _error_of_worker(text)
    lines = text.splitlines()
    of_task = [line for line in lines if line.startswith(_CAUSED_BY)]
    return of_task[-1].removeprefix(_CAUSED_BY) if of_task else lines[0]


def _error_of_worker(text: str) -> str:
    """Return the error in the message of a failed Python worker, which has a traceback."""
    traceback = text.rpartition(_TRACEBACK)[2].splitlines()
    return next((line for line in traceback if line and not line[0].isspace()), text)
