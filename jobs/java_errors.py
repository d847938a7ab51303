"""Errors of the JVM, without stack traces."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError

_CAUSED_BY: Final = "Caused by: "


def innermost_cause(error: Py4JJavaError) -> str:
    """Return the innermost cause: ``error`` itself only names the failed call.

    Causes on the driver are objects; the text of the last one has those of a task.
    """
    cause = error.java_exception
    while (inner := cause.getCause()) is not None:
        cause = inner
    lines = str(cause.toString()).splitlines()
    of_task = [line for line in lines if line.startswith(_CAUSED_BY)]
    return of_task[-1].removeprefix(_CAUSED_BY) if of_task else lines[0]
