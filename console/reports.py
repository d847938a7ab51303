"""The reports of jobs in a folder, and how a page shows one that may come from anybody.

``jobs report … --html FILE`` and ``-o json > FILE`` write them. A report has a frame without
scripts, forms and an origin of its own, and it can load nothing: so it can neither act for the
person who looks at it nor tell others what it has seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final, NamedTuple

from regent.core.errors import RegentError

FOLDER: Final = "reports"
"""The folder in the data directory of a cluster."""

FRAMED_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Frame-Options": "SAMEORIGIN",
}
"""What a report is sent with, in the place of the headers of other answers."""

_KINDS: Final = (".html", ".json")
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_TEXT: Final = 200_000  # characters of JSON
_MAX_REPORTS: Final = 500


class ReportError(RegentError):
    """There is no such report, or it cannot be shown."""


class FoundReport(NamedTuple):
    """A file in the folder: its name, its time (wall clock), its size in bytes."""

    name: str
    at_ms: float
    size: int

    @property
    def is_html(self) -> bool:
        """Whether it is a page."""
        return self.name.endswith(".html")


def find_reports(folder: Path) -> list[FoundReport]:
    """Return the reports of a folder, the newest first; none if there is no such folder."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_report = entry.name.endswith(_KINDS) and _is_text(entry.name)
                if is_report and entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    found.append(FoundReport(entry.name, stat.st_mtime * 1000, stat.st_size))
    except OSError:
        return []
    return sorted(found, key=lambda report: (-report.at_ms, report.name))[:_MAX_REPORTS]


def _is_text(name: str) -> bool:
    """Whether a page can have this name: one that is not UTF-8 has half characters."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def read_report(folder: Path | None, name: str) -> bytes:
    """Return the content of a report. Raises ``ReportError``.

    Only a file that the folder lists is read, never one that a link or a path in ``name`` leads to.
    """
    found = {} if folder is None else {report.name: report for report in find_reports(folder)}
    if folder is None or name not in found:
        raise ReportError("there is no such report")
    if found[name].size > _MAX_BYTES:
        raise ReportError(f"the report has more than {_MAX_BYTES >> 20} MB: open the file itself")
    try:
        with open(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise ReportError(f"the report cannot be read: {error.strerror}") from None


def indented_json(content: bytes) -> str | None:
    """Return JSON with a line for each value; None: it is none, or values would change by that.

    These are keys that are there twice, numbers that no float is, and half characters.
    """
    try:
        values = json.loads(
            content, object_pairs_hook=_unique, parse_float=_exact, parse_constant=_refused
        )
        text = json.dumps(values, indent=2, ensure_ascii=False)
        text.encode()
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return text


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _exact(text: str) -> float:
    number = float(text)
    if Decimal(text) != Decimal(repr(number)):
        raise ValueError("no float is this number")
    return number


def _refused(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def json_lines(content: bytes) -> str:
    """Return a report in JSON with a line for each value, cut if it is long."""
    text = indented_json(content)
    if text is None:
        text = content.decode(errors="replace")
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}\n… (cut)"
