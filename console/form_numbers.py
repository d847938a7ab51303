"""Numbers and partitions in forms and addresses: text of any kind, and of any length."""

from __future__ import annotations

from typing import Final

from regent.core.model import TopicPartition

MAX_OFFSET: Final = 2**63 - 1
MAX_PARTITION: Final = 2**31 - 1
_MAX_DIGITS: Final = 19  # Python refuses to read a number of some thousands


def number_in(text: str, most: int) -> int | None:
    """Return a number from 0 to ``most``; None: the text is none."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        return None
    return number if (number := int(text)) <= most else None


def partition_in(text: str) -> TopicPartition | None:
    """Return the partition that "topic-3" names; None: it names none."""
    topic, _, digits = text.rpartition("-")
    number = number_in(digits, MAX_PARTITION)
    return None if number is None or not topic else TopicPartition(topic, number)
