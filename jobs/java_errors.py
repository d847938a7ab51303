"""Errors of the JVM and of Python workers, without stack traces."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException

_CAUSED_BY: Final = "Caused by: "
_TRACEBACK: Final = "Traceback (most recent call last):"
_LOGGED: Final = re.compile(r"\S+ \S+ (?P<level>TRACE|DEBUG|INFO|WARN|ERROR|FATAL) (?P<text>.*)")
_OF_THREAD: Final = re.compile(r'Exception in thread ".*?" (?:[\w$.]+: )?(?P<text>.*)')
_THROWN: Final = re.compile(
    r"(?:Caused by: )?(?P<text>(?:[\w$]+\.)+[\w$]*(?:Exception|Error|Failure)\b(?::.*)?)"
)
_READ: Final = re.compile(
    r"\[FAILED_READ_FILE\S*\] Encountered error while reading file (?:file://)?(?P<file>\S+?)\.?\s"
)
_BEFORE: Final = "Error: Could not create the Java Virtual Machine."
_AFTER: Final = "Error occurred during initialization of VM"
_UNTELLING: Final = re.compile(  # frames of stack traces, and what is in every log
    r"\s|at |\.\.\.|$|\[\d[\d.,]*m?s\]\[|.*\b(WARNING|warning|NOTE|default log4j profile)\b|::"
    r"|\[Stage \d|Picked up |Setting (Spark|default) log |To adjust logging level "
)
_USUAL_WARNINGS: Final = re.compile(r"NativeCodeLoader: |Utils: (Your hostname|Set SPARK_LOCAL_IP)")


_OUR_ERROR: Final = re.compile(r"^regent\.[\w.]+: ")


def explanation(error: Py4JJavaError | PySparkException) -> str:
    """Return the innermost cause in one line, which only a JVM that still runs can tell.

    Causes on the driver are objects; the text of the last one has those of a task.
    """
    if isinstance(error, PythonException):
        return _error_of_worker(str(error))
    if isinstance(error, PySparkException):
        return str(error).strip().partition("\n")[0]
    cause = error.java_exception
    texts = [str(cause.toString())]
    while (cause := cause.getCause()) is not None:
        texts.append(str(cause.toString()))
    text = texts[-1]
    if _TRACEBACK in text:
        return _error_of_worker(text)
    lines = text.splitlines()
    of_task = [line for line in lines if line.startswith(_CAUSED_BY)]
    reason = of_task[-1].removeprefix(_CAUSED_BY) if of_task else lines[0]
    read = _READ.search("\n".join(texts))
    return f"{read['file']} cannot be read: {reason}" if read else reason


def _error_of_worker(text: str) -> str:
    """Return the error in the message of a failed Python worker, which has a traceback."""
    traceback = text.rpartition(_TRACEBACK)[2].splitlines()
    found = next((line for line in traceback if line and not line[0].isspace()), text)
    return _OUR_ERROR.sub("", found)  # it says all that its user needs


def cause_in_log(log: str) -> str:
    """Return why a JVM of Spark does not start, or has ended, by its log; empty if it does not say.

    That is what the JVM itself refuses; otherwise the last error, the last other line, or the last
    warning. Of an exception it is the innermost cause. Lines that are in every log do not count.
    """
    lines = log.splitlines()
    if _BEFORE in lines[1:]:
        return lines[lines.index(_BEFORE) - 1]
    if _AFTER in lines[:-1]:
        return lines[lines.index(_AFTER) + 1]
    errors: list[str] = []
    others: list[str] = []
    warnings: list[str] = []
    found = others  # what the next exception belongs to
    for line in lines:
        if (logged := _LOGGED.match(line)) is not None:
            found = errors if logged["level"] in ("ERROR", "FATAL") else warnings
            if found is errors or logged["level"] == "WARN":
                found += [] if _USUAL_WARNINGS.match(logged["text"]) else [logged["text"]]
        elif (of_thread := _OF_THREAD.match(line)) is not None:
            found = errors
            found.append(of_thread["text"])
        elif (thrown := _THROWN.match(line)) is not None:
            found.append(thrown["text"])
        elif not _UNTELLING.match(line):
            others.append(line)
    return next((kind[-1].strip() for kind in (errors, others, warnings) if kind), "")
