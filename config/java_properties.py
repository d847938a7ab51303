"""Reads Java's files of properties, as ``java.util.Properties`` does, and Kafka's lines of JAAS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_END: Final = re.compile(r"\r\n|\r|\n")  # Python knows more ends of lines, and more blanks
_BLANK: Final = " \t\f"
_TRIMMED: Final = "".join(map(chr, range(33)))  # what Java trims

_GAP: Final = r"(?>(?:[\0- ]|/\*.*?\*/|/(?!\*)[^\r\n]*)*)"
_WORD: Final = r"[a-zA-Z_$\xa0-\U0010ffff][a-zA-Z0-9_.$\xa0-\U0010ffff-]*+"
_TEXT: Final = rf"""(?>{_WORD}|"(?:\\.|[^"\\\r\n])*"|'(?:\\.|[^'\\\r\n])*')"""
_OPTION: Final = re.compile(rf"{_GAP}({_TEXT}){_GAP}={_GAP}({_TEXT})", re.DOTALL)
_MODULE: Final = re.compile(
    rf"{_GAP}{_TEXT}{_GAP}(?i:required|requisite|sufficient|optional)(?![\w.$-])"
    rf"((?:{_OPTION.pattern})*){_GAP};{_GAP}",
    re.DOTALL,
)
_OF_TEXT: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPES_OF_TEXT: Final = {**_ESCAPES, "a": "\a", "b": "\b", "v": "\v"}


def read_properties(path: Path) -> list[tuple[str, str]]:
    """Return the names and values of a file as Kafka reads it, which trims what it knows.

    Raises ``OSError``, and ``ValueError`` for what Java cannot read.
    """
    rows = parse_properties(path.read_text(encoding="iso-8859-1"))
    return [(name, value.strip(_TRIMMED)) for name, value in rows]


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


def jaas_options(text: str) -> dict[str, str]:
    """Return the options in a value of ``sasl.jaas.config``.

    Mirrors ``org.apache.kafka.common.security.JaasConfig`` with its ``StreamTokenizer``. Raises
    ``ValueError`` for what Kafka cannot read.
    """
    module = _MODULE.fullmatch(text)
    if module is None:
        raise ValueError(
            'must be: MODULE required NAME="VALUE" …; with a semicolon at the end, and with quotes'
            " around a value that begins with a digit or has other characters than letters, digits"
            " and . - _ $"
        )
    return {_word(name): _word(value) for name, value in _OPTION.findall(module[1])}


def _word(text: str) -> str:
    """Return a word, or what is in quotes."""

    def character(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPES_OF_TEXT.get(code, code)

    return _OF_TEXT.sub(character, text[1:-1]) if text[0] in "\"'" else text
