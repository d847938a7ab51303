"""Reads Java's files of properties, as ``java.util.Properties`` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_END: Final = re.compile(r"\r\n|\r|\n")  # Python knows more ends of lines, and more blanks
_BLANK: Final = " \t\f"


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a file of properties, as ``java.util.Properties`` reads it.

    A name may come again: the last one counts. Raises ``ValueError`` for what Java cannot read.
    """
    if "\0" in text:
        raise ValueError("is not a text in ISO 8859-1 or UTF-8: save it as one")
    for line in _logical_lines(text):
        found = _KEY.fullmatch(line)
        if found is not None:
            if any(escape[1] == "u" for escape in _ESCAPED.finditer(line)):
                raise ValueError(
                    f"{found[1]} has \\u without four hexadecimal digits: a backslash is \\\\"
                )
            yield unescaped(found[1]), unescaped(found[2])


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments; a line that ends with a backslash goes on in the next."""
    begun = ""
    for line in _END.split(text):
        stripped = line.lstrip(_BLANK)
        if not begun and (not stripped or stripped[0] in "#!"):
            continue
        slashes = len(stripped) - len(stripped.rstrip("\\"))
        if slashes % 2:
            begun += stripped[:-1]
            continue
        yield begun + stripped
        begun = ""
    if begun:
        yield begun


def unescaped(text: str) -> str:
    """Return a text with the characters that its escapes stand for."""

    def character(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return _ESCAPED.sub(character, text)
