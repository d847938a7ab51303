"""Makes the name of a user out of the subject of a certificate.

Mirrors ``org.apache.kafka.common.security.ssl.SslPrincipalMapper``, with the same rules: each is
``DEFAULT`` (the subject itself) or ``RULE:pattern/replacement/`` with ``L`` or ``U`` behind it for
small or capital letters. Patterns and replacements are Java's. Only what Python and Java take for
the same thing is allowed in a pattern: who is which user must not depend on the language.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

_ANY: Final = r"[^\n\r]"
_RULE: Final = (
    r"(?P<default>DEFAULT)"
    rf"|RULE:(?P<pattern>(?:\\{_ANY}|[^\\/])*)/(?P<replacement>(?:\\{_ANY}|[^\\/])*)/(?P<case>[LU]?)"
    rf"{_ANY}*?|{_ANY}*?"
)
_SPLITTER: Final = re.compile(rf"\s*(?P<rule>{_RULE})\s*(?:,\s*|\Z)", re.ASCII)
_PARSER: Final = re.compile(_RULE, re.ASCII)
_TRIMMED: Final = "".join(map(chr, range(33)))  # by Java's String.trim
_OTHER_LINE_ENDS: Final = re.compile("[\u0085\u2028\u2029]")
_LINE_ENDS: Final = re.compile("[\n\r\u0085\u2028\u2029]")

_ESCAPE: Final = r"\\(?:[!-/:-@\[-`{-~ ]|[dDwWsStnrf])"
_TOKEN: Final = re.compile(
    rf"""(?P<same>
        {_ESCAPE} | \\[1-9](?![0-9])
        | \(\?(?::|=|!|<=|<!|>|i:) | \((?!\?) | [)|^$.]
        | (?:[*+?]|\{{[0-9]{{1,4}}(?:,(?:[0-9]{{1,4}})?)?\}})[?+]?(?![*+?{{])
        | \[\^?(?:{_ESCAPE}|[^\\\[\]^&~|-]-[^\\\[\]^&~|-]|[^\\\[\]^&~|-]|[&~|](?![&~|]))+-?\]
        | [^\\()|^$.*+?{{\[]
    )
    | \(\?<(?P<group>[A-Za-z][A-Za-z0-9]*)>
    | \\k<(?P<again>[A-Za-z][A-Za-z0-9]*)>""",
    re.VERBOSE | re.ASCII,
)
_POSSESSIVE: Final = re.compile(r"(?:[*+?]|\{.*\})\+")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{[0-9,]+\})[?+]?")
_ENDLESS: Final = re.compile(r"(?:[*+]|\{[0-9]+,\})\??")
_OF_NO_WIDTH: Final = ("(?=", "(?!", "(?<=", "(?<!")
_NEVER_ENTERED_AGAIN: Final = ("(?>", *_OF_NO_WIDTH)
_FLAGS: Final = re.compile(r"\(\?[ims]+\)")
_NUMBER: Final = re.compile(r"\$([0-9]+)")
_REFERENCE: Final = re.compile(
    r"\\(?P<literal>.)|\$(?P<number>[0-9]+)|\$\{(?P<name>[A-Za-z0-9]+)\}|(?P<wrong>[\\$])",
    re.DOTALL,
)
_LAST_OF_ONE_UNIT: Final = "\uffff"
_CAPITAL_SIGMA: Final = "\u03a3"  # Java's word ends, and so its small letters, are not Python's
_MAX_INT: Final = 2**31 - 1

_Mapping = Callable[[str], str | None]


class BadRuleError(ValueError):
    """A rule is not one; the message says why."""


class NoMatchingRuleError(ValueError):
    """No rule applies to the subject of a certificate."""


class _HalfCharacterError(Exception):
    """Java would put a replacement into the middle of a character of two units of UTF-16."""


class SslPrincipalMapper:
    """The rules of one listener, in their order."""

    def __init__(self, rules: str) -> None:
        """Raise ``BadRuleError``."""
        if _OTHER_LINE_ENDS.search(rules):
            raise BadRuleError(f"{rules!r} has an end of a line that is not \\n or \\r")
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
    return (found["rule"] for found in _SPLITTER.finditer(rules.strip(_TRIMMED)))


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
    try:
        name = "".join(_replaced(rule, subject))
    except _HalfCharacterError:
        return ""
    if rule.case == "L" and _CAPITAL_SIGMA in name:
        return ""
    return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)


def _replaced(rule: _Rule, subject: str) -> Iterator[str]:
    """Yield the parts of a subject in which all matches are replaced, as ``replaceAll`` does.

    After an empty match Java looks for the next one a character further, ``re.sub`` at its place.
    """
    copied = start = 0
    while start <= len(subject) and (found := rule.pattern.search(subject, start)) is not None:
        yield subject[copied : found.start()]
        for is_group, part in rule.replacement:
            yield (found[part] or "") if is_group else str(part)
        copied = start = found.end()
        if found.start() == copied:
            if subject[copied : copied + 1] > _LAST_OF_ONE_UNIT:
                raise _HalfCharacterError
            start += 1
    yield subject[copied:]


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return Java's pattern as Python's; refuse what Python does not have or takes otherwise."""
    flags = _FLAGS.match(pattern)
    at = flags.end() if flags else 0
    translated = [pattern[:at]]
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            raise BadRuleError(
                f"{pattern!r}: {pattern[at:]!r} begins with what is not supported:"
                " write it otherwise"
            )
        group, again = found["group"], found["again"]
        token = f"(?P<{group}>" if group else f"(?P={again})" if again else found["same"]
        translated.append(token)
        at = found.end()
    _check_groups(pattern, translated[1:])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile("".join(translated), re.ASCII)
    except (ValueError, re.error, Warning, RecursionError, OverflowError) as error:
        raise BadRuleError(f"{pattern!r} is no usable pattern: {error}") from None


def _check_groups(pattern: str, tokens: Sequence[str]) -> None:
    """Raise ``BadRuleError`` for a group that means something else to Java, or takes for ever.

    Java does not go back into ``(?>...)``, ``(?=...)`` and ``(...)*+``, so it does not unset their
    groups when an alternative fails. And Python before 3.11.5 takes ``(...)*+`` for a match where
    it is none. With ``(a*)*`` each way to cut a text would be tried: the subject of one certificate
    would stop the whole broker. In each alternative of a repeated group, something that is not
    repeated must be beside what is.
    """
    outer = [_Alternatives("")]
    for token, quantifier in pairwise([*tokens, ""]):
        if token.startswith("(") and not token.startswith("(?P="):
            kept = next((one.opening for one in outer if one.opening in _NEVER_ENTERED_AGAIN), None)
            if kept is not None and (token == "(" or token.startswith("(?P<")):
                raise BadRuleError(
                    f"{pattern!r}: a group within {kept!r} is not supported: use (?:...)"
                )
            outer.append(_Alternatives(token))
        elif token == "|":
            outer[-1].end_one()
        elif token == ")" and len(outer) > 1:
            if _POSSESSIVE.fullmatch(quantifier):
                raise BadRuleError(f"{pattern!r}: {quantifier!r} behind a group is not supported")
            closed = outer.pop()
            closed.end_one()
            if closed.are_endless and _ENDLESS.fullmatch(quantifier):
                raise BadRuleError(
                    f"{pattern!r}: a group of only what is repeated is slow when it is repeated"
                )
            is_atom = closed.opening not in _OF_NO_WIDTH
            outer[-1].add(quantifier, is_atom=is_atom, is_endless=closed.are_endless)
        elif not _QUANTIFIER.fullmatch(token):
            outer[-1].add(quantifier, is_atom=token not in ("^", "$"))


@dataclass(slots=True)
class _Alternatives:
    """The alternatives of a group: what the present one has, and whether one is only repeated."""

    opening: str
    has_repeated: bool = False
    has_one: bool = False
    are_endless: bool = False

    def add(self, quantifier: str, *, is_atom: bool, is_endless: bool = False) -> None:
        self.has_repeated |= is_endless or _ENDLESS.fullmatch(quantifier) is not None
        self.has_one |= is_atom and not is_endless and not _QUANTIFIER.fullmatch(quantifier)

    def end_one(self) -> None:
        self.are_endless |= self.has_repeated and not self.has_one
        self.has_repeated = self.has_one = False


def _replacement(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[bool, str | int]]:
    """Yield the parts of Java's replacement; raises ``BadRuleError`` where Java always fails."""
    end = 0
    text = _with_literal_references(text, pattern.groups)
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


def _with_literal_references(text: str, groups: int) -> str:
    """Return a replacement in which Kafka has made a reference to a missing group literal.

    As in Kafka, only the first one is in the right place, and one that is literal already is not.
    """
    changed = text
    for found in _NUMBER.finditer(text) if groups else ():
        number = int(found[1])
        if number > _MAX_INT:
            raise BadRuleError(f"{text!r} is no replacement: {found[0]} is too large")
        while number > groups and number >= 10:
            number //= 10
        if number > groups and not found[1].startswith("0"):
            changed = f"{changed[: found.start()]}\\{changed[found.start() :]}"
    return changed


def _numbered(digits: str, groups: int) -> Iterator[tuple[bool, str | int]]:
    """Take the first digit, and each further one while such a group exists, as Java does."""
    count = 1
    while count < len(digits) and int(digits[: count + 1]) <= groups:
        count += 1
    number = int(digits[:count])
    if number > groups:
        # Every certificate would be refused: a rule like this is a mistake.
        raise BadRuleError(f"${digits} refers to a group that the pattern has not")
    yield True, number
    yield False, digits[count:]
