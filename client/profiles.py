"""Profiles: names for clusters, in a file of the user, so that commands need not repeat addresses.

The file has addresses and the paths of secrets, never a secret. It is
``$XDG_CONFIG_HOME/regent/profiles.json``, by default in ``~/.config``, and private.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from regent.config.private_files import read_private, write_private
from regent.core.errors import BadDataError, RegentError

PROFILE_VARIABLE: Final = "REGENT_PROFILE"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ProfileError(RegentError):
    """There is no such profile, or it cannot be written."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How commands find one cluster; "": the profile does not say it. Paths are absolute."""

    zookeeper: str = ""
    bootstrap_server: str = ""
    data_dir: str = ""
    keys: str = ""
    command_config: str = ""
    zookeeper_secret: str = ""


NAMES_A_CLUSTER: Final = ("zookeeper", "bootstrap_server", "data_dir")
"""The fields of which a profile needs one."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles by name, and the name of the one that is used by default; "": none."""

    by_name: Mapping[str, Profile]
    used: str = ""

    @classmethod
    def read(cls) -> Profiles:
        """Read the file of this user; without one there are none. Raises ``RegentError``."""
        path = profiles_file()
        if not path.exists():
            return cls({})
        try:
            document = json.loads(read_private(path, "the addresses of clusters"))
            rows = {name: Profile(**row) for name, row in document["profiles"].items()}
            profiles = cls(rows, document.get("used", ""))
            values = [profiles.used, *(v for row in rows.values() for v in asdict(row).values())]
            if not all(isinstance(value, str) for value in values):
                raise TypeError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BadDataError(f"{path} is no file of profiles: correct or remove it") from None
        return profiles

    def write(self) -> None:
        """Replace the file. Raises ``ProfileError``."""
        path = profiles_file()
        rows = {
            name: {key: value for key, value in asdict(row).items() if value}
            for name, row in self.by_name.items()
        }
        text = json.dumps({"used": self.used, "profiles": rows}, indent=2) + "\n"
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(new, text)
            new.replace(path)
        except OSError as error:
            raise ProfileError(f"{path} cannot be written: {error.strerror}") from None
        finally:
            with suppress(OSError):
                new.unlink()

    def get(self, name: str) -> Profile:
        """Return a profile. Raises ``ProfileError``."""
        found = self.by_name.get(name)
        if found is None:
            there = ", ".join(sorted(self.by_name)) or "none"
            raise ProfileError(f"there is no profile {name!r}; the profiles are: {there}")
        return found

    def with_profile(self, name: str, profile: Profile) -> Profiles:
        """Return the profiles with one more. Raises ``ProfileError`` for a name that is taken."""
        if _NAME.fullmatch(name) is None:
            raise ProfileError(
                f"{name!r} cannot name a profile: use up to 63 letters, digits, dots, dashes and"
                " underscores"
            )
        if name in self.by_name:
            raise ProfileError(f"there is a profile {name} already: remove it first")
        return replace(self, by_name={**self.by_name, name: profile})

    def without(self, name: str) -> Profiles:
        """Return the profiles without one. Raises ``ProfileError``."""
        self.get(name)
        rows = {key: row for key, row in self.by_name.items() if key != name}
        return Profiles(rows, "" if self.used == name else self.used)

    def using(self, name: str) -> Profiles:
        """Return the profiles with another default; "": none. Raises ``ProfileError``."""
        if name:
            self.get(name)
        return replace(self, used=name)


def profiles_file() -> Path:
    """Return the path of the file of this user."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(folder) if folder.startswith("/") else Path.home() / ".config"
    return base / "regent" / "profiles.json"


def profile_values(profile: Profile) -> Mapping[str, Any]:
    """Return what a profile says, by the names of options."""
    return {name: value for name, value in asdict(profile).items() if value}
