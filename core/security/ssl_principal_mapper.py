"""Makes the name of a user out of the subject of a certificate.

Mirrors ``org.apache.kafka.common.security.ssl.SslPrincipalMapper``, with the same rules: each is
``DEFAULT`` (the subject itself) or ``RULE:pattern/replacement/`` with ``L`` or ``U`` behind it for
small or capital letters. Patterns and replacements are Java's.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

_RULE: Final = (
    r"(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?).*?"
    r"|.*?"
)
_SPLITTER: Final = re.compile(rf"\s*(?P<rule>{_RULE})\s*(?:,\s*|\Z)")
_PARSER: Final = re.compile(_RULE)
_NAMED_GROUP: Final = re.compile(r"((?:^|[^\\])(?:\\\\)*)\(\?<(?=[A-Za-z])")
_REFERENCE: Final = re.compile(
    r"\\(?P<literal>.)|\$(?P<number>\d+)|\$\{(?P<name>\w+)\}|(?P<wrong>[\\$])"
)
_LINE_ENDS: Final = re.compile("[\n\r\u0085\u2028\u2029]")

_Mapping = Callable[[str], str | None]


class BadRuleError(ValueError):
    """A rule is not one; the message says why."""


class NoMatchingRuleError(ValueError):
    """No rule applies to the subject of a certificate."""


class SslPrincipalMapper:
    """The rules of one listener, in their order."""

    def __init__(self, rules: str) -> None:
        """Raise ``BadRuleError``."""
        self._text = rules
        self._rules = [mapping for rule in _split(rules) for mapping in _parsed(rule)]

    def name_of(self, subject: str) -> str:
        """Return what the first rule that matches a whole subject makes of it.

        Raises ``NoMatchingRuleError``; also for an empty name.
        """
        # Java's patterns do not go over the ends of lines. No name of a user has one.
        names = () if _LINE_ENDS.search(subject) else (rule(subject) for rule in self._rules)
        name = next((name for name in names if name is not None), None)
        if not name:
            raise NoMatchingRuleError(
                f"no rule of ssl_principal_mapping_rules makes a name of {subject!r}"
                f" ({self._text!r})"
            )
        return name


def _split(rules: str) -> Iterator[str]:
    """Yield each rule. A comma within a rule is part of it (KAFKA-8860)."""
    return (found["rule"] for found in _SPLITTER.finditer(rules.strip()))


def _parsed(rule: str) -> Sequence[_Mapping]:
    """Return what a rule does; nothing for an empty rule."""
    found = _PARSER.match(rule)
    if found is None or found.end() != len(rule):
        raise BadRuleError(
            f"{rule!r} is neither DEFAULT nor RULE:PATTERN/REPLACEMENT/ with L or U behind it"
        )
    if found["default"]:
        return [lambda subject: subject]
    if found["pattern"] is None:
        return []
    pattern = _compiled(found["pattern"])
    replacement = tuple(_replacement(found["replacement"], pattern))
    return [partial(_apply, _Rule(pattern, replacement, found["case"]))]


class _Rule(NamedTuple):
    """``replacement``: literal text, and the numbers or names of groups, marked by True."""

    pattern: re.Pattern[str]
    replacement: tuple[tuple[bool, str | int], ...]
    case: str


def _apply(rule: _Rule, subject: str) -> str | None:
    if rule.pattern.fullmatch(subject) is None:
        return None
    name = rule.pattern.sub(
        lambda found: "".join(
            (found[part] or "") if is_group else str(part) for is_group, part in rule.replacement
        ),
        subject,
    )
    return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return Java's pattern as Python's; refuse what Python does not have or takes otherwise."""
    if _has_nested_set(pattern):
        raise BadRuleError(f"{pattern!r}: sets inside of sets are not supported")
    translated = _NAMED_GROUP.sub(r"\1(?P<", pattern)
    translated = re.sub(r"\\k<(\w+)>", r"(?P=\1)", translated)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(translated, re.ASCII)
    except (re.error, Warning, RecursionError, OverflowError) as error:
        raise BadRuleError(f"{pattern!r} is no usable pattern: {error}") from None


def _has_nested_set(pattern: str) -> bool:
    is_inside = False
    for token in re.findall(r"\\.|.", pattern, re.DOTALL):
        if token == "[" and is_inside:
            return True
        is_inside = token == "[" or (is_inside and token != "]")
    return False


def _replacement(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[bool, str | int]]:
    """Yield the parts of Java's replacement; a reference to a group that is missing is literal."""
    end = 0
    for found in _REFERENCE.finditer(text):
        yield False, text[end : found.start()]
        end = found.end()
        if found["literal"]:
            yield False, found["literal"]
        elif found["number"]:
            yield from _numbered(found["number"], pattern.groups)
        elif found["name"] in pattern.groupindex:
            yield True, found["name"]
        else:
            raise BadRuleError(f"{text!r} is no replacement: {found[0]!r} refers to no group")
    yield False, text[end:]


def _numbered(digits: str, groups: int) -> Iterator[tuple[bool, str | int]]:
    """Take the first digit, and each further one while such a group exists, as Java does.

    Without any group every certificate would be refused: a rule like this is a mistake.
    """
    if not groups and int(digits[0]):
        raise BadRuleError(f"${digits} refers to a group, and the pattern has none")
    count = 1
    while count < len(digits) and int(digits[: count + 1]) <= groups:
        count += 1
    number = int(digits[:count])
    if number > groups:
        yield False, f"${digits}"
    else:
        yield True, number
        yield False, digits[count:]
