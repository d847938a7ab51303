"""Sentences of a case: every word must be understood."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.conformance.fields import UnknownInCaseError

_TAKEN = "\N{NULL}"
_FILLERS = frozenset(
    """
    a all also an and are as at be by each every for from has have in is it its of
    on once one or still that the their them then there they to was were while who
    """.split()  # noqa: SIM905 - a list of them would be a screen long
)


class Sentence:
    """A sentence of a case, from which one phrase after the other is taken."""

    def __init__(self, text: str, what: str) -> None:
        if not isinstance(text, str):
            raise UnknownInCaseError(f"{what} is no sentence: {text!r}")
        self._text = text
        self._what = what
        self._left = text.lower()

    def take(self, phrase: str) -> re.Match[str] | None:
        """Take the first phrase (a regular expression) of whole words; None if there is none."""
        found = re.search(rf"(?<!\w)(?:{phrase})(?!\w)", self._left)
        if found is not None:
            self._left = f"{self._left[: found.start()]} {_TAKEN} {self._left[found.end() :]}"
        return found

    def says(self, phrase: str) -> bool:
        """Whether the sentence has a phrase at any place; it is taken then."""
        is_said = False
        while self.take(phrase) is not None:
            is_said = True
        return is_said

    def end(self) -> None:
        """Raise ``UnknownInCaseError`` if significant words are left."""
        words = re.findall(rf"[^\s,;:()!{_TAKEN}]+", self._left)
        meant = [word.strip(".") for word in words if word.strip("./-")]
        unknown = [word for word in meant if word not in _FILLERS]
        if unknown:
            raise UnknownInCaseError(
                f"{self._what}: unknown words {' '.join(unknown)!r} of {self._text!r}"
            )


def understand(text: str, what: str, known: Iterable[str]) -> None:
    """Check that a sentence consists of known phrases."""
    sentence = Sentence(text, what)
    for phrase in known:
        sentence.says(phrase)
    sentence.end()
