"""What a check says: one sentence about one thing, how bad it is, and what closes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """How bad a finding is; the numbers are exit codes."""

    OK = 0
    WARNING = 1
    PROBLEM = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence; the fields are those of the JSON output.

    ``check`` is the name of the check, and groups findings. ``subject`` is the thing, ``message``
    what it is and its danger, ``remedy`` the setting or the command that closes it: empty if there
    is nothing to do. ``facts`` are for programs.
    """

    check: str
    severity: Severity
    subject: str
    message: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The message, and the remedy."""
        return f"{self.message}: {self.remedy}" if self.remedy else self.message

    @property
    def json(self) -> Mapping[str, Any]:
        """What programs get."""
        return {
            "check": self.check,
            "severity": self.severity.name.lower(),
            "subject": self.subject,
            "message": self.message,
            "remedy": self.remedy,
            "facts": self.facts,
        }
