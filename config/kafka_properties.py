"""Reads a file of Kafka's broker, ``server.properties``: ``regent broker --kafka-properties``.

``config.kafka_treatments`` says which settings are taken. The file may have Regent's own settings
too, as ``regent.NAME``, which Kafka ignores: so one file serves both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from regent.config.java_properties import jaas_options, parse_properties, read_properties
from regent.config.kafka_treatments import IGNORED, OURS, REFUSED, TAKEN
from regent.config.listeners import Listeners, ListenersError
from regent.config.private_files import read_private, write_private
from regent.config.settings import LISTENER_OPTIONS
from regent.config.settings_file import SettingsError
from regent.config.tables.broker import BrokerConfig
from regent.config.tables.sasl import SaslConfig
from regent.core.errors import RegentError
from regent.core.model import MAX_BROKER_ID, EndPoint
from regent.core.security.session import SecurityProtocol
from regent.core.setting import ConfigType, Setting

_LISTENER: Final = re.compile(r"listener\.name\.([a-z0-9_.-]+?)\.(.+)")
_MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
_JAAS: Final = ".sasl.jaas.config"
_USER: Final = "user_"
_SECRETS: Final = ("delegation.token.secret.key", "delegation.token.master.key")
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_STORES: Final = ("keystore", "truststore")
_MINUTE_MS: Final = 60_000
_UNITS: Final = {  # Kafka's other names of a setting, the most important first
    "log.retention.ms": (("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "controller.socket.timeout.ms": (),
}
_DEFAULT_LISTENERS: Final = "PLAINTEXT://:9092"
_DEFAULT_LOG_DIR: Final = "/tmp/kafka-logs"

Given = Mapping[str, Mapping[str, Any]]
"""Settings by table and name."""


@dataclass(frozen=True)
class KafkaProperties:
    """What a file of Kafka's says.

    ``tables`` are the settings that are taken. ``ignored`` has the names of others by the reason;
    ``unknown`` are names that neither Kafka nor Regent has, ``repeated`` those that are there more
    than once. ``secret_files`` must be written before the start: the passwords in the file, as
    Regent's settings name them.
    """

    path: Path
    broker_id: int
    zookeeper: str
    data_dir: Path
    tables: Given
    ignored: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    repeated: tuple[str, ...]
    secret_files: Mapping[Path, str] = field(repr=False)

    def notes(self) -> Iterator[str]:
        """Yield a line for each reason to ignore settings, and one for each other odd name."""
        for reason, names in self.ignored.items():
            yield f"{self.path}: ignored, because {reason}: {', '.join(names)}"
        for name in self.unknown:
            yield f"{self.path}: {name} is not a setting of Kafka 3.9, and is ignored"
        for name in self.repeated:
            yield f"{self.path}: {name} is there more than once: only the last value counts"

    def write_secrets(self) -> None:
        """Write the passwords to private files. Raises ``RegentError``."""
        for path, text in self.secret_files.items():
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_private(path, text)
            except OSError as error:
                raise RegentError(f"{path}: {error.strerror}") from None


def read_kafka_properties(
    path: Path,
    given: Given,
    *,
    broker_id: int | None = None,
    zookeeper: str | None = None,
    data_dir: Path | None = None,
) -> KafkaProperties:
    """Read a file of Kafka's broker.

    ``given`` and the others are from the command line, which counts before the file. Raises
    ``SettingsError`` with a line for each setting that cannot be honoured, all at once.
    """
    return _Reading(path, given).result(broker_id, zookeeper, data_dir)


def read_log_directories(
    path: Path, *, log_dirs: str | None, broker_id: int | None
) -> tuple[int, list[Path]]:
    """Return the id and the log directories in a file of Kafka's; nothing else of it is examined.

    What is not None is from the command line, and counts before the file. Raises ``SettingsError``.
    """
    return _Reading(path, {"log": {"log_dirs": log_dirs}}).log_directories(broker_id)


class _Reading:
    """One reading of a file; collects what is taken, and the problems."""

    def __init__(self, path: Path, given: Given) -> None:
        self._path = path
        self._given = given
        self._tables: dict[str, dict[str, Any]] = {}
        self._of_listeners: dict[str, dict[str, Any]] = {}
        self._logins: dict[tuple[str, str], Mapping[str, str]] = {}  # by listener and mechanism
        self._ignored: dict[str, list[str]] = {}
        self._unknown: list[str] = []
        self._problems: list[str] = []
        self._secret_files: dict[str, str] = {}
        self._is_secret: str | None = None
        try:
            rows = read_properties(path)
        except OSError as error:
            raise SettingsError(f"--kafka-properties {path}: {error.strerror}") from None
        except ValueError as error:
            raise SettingsError(f"--kafka-properties {path}: {error}") from None
        self._properties = dict(rows)
        counts = Counter(name for name, _ in rows)
        self._repeated = tuple(name for name, count in counts.items() if count > 1)

    def result(
        self, broker_id: int | None, zookeeper: str | None, data_dir: Path | None
    ) -> KafkaProperties:
        for name, text in self._properties.items():
            self._read(name, text)
        self._take_other_units()
        directories = self._take_directories()
        self._take_stores()
        self._take_listeners()
        zookeeper = zookeeper or self._properties.get("zookeeper.connect", "")
        if not zookeeper and not self._properties.get("process.roles"):
            self._refuse("zookeeper.connect", "is missing: it, or --zookeeper, must name ZooKeeper")
        found = self._broker_id(directories) if broker_id is None else broker_id
        if self._is_secret is not None:
            self._check_private(self._is_secret)
        self._check_problems()
        assert found is not None
        data_dir = data_dir or Path(directories[0]).parent / f"regent-{found}"
        logins = data_dir.absolute() / "logins"
        return KafkaProperties(
            self._path,
            found,
            zookeeper,
            data_dir,
            self._all_tables(logins),
            {reason: tuple(names) for reason, names in self._ignored.items()},
            tuple(self._unknown),
            self._repeated,
            {logins / name: text for name, text in self._secret_files.items()},
        )

    def log_directories(self, broker_id: int | None) -> tuple[int, list[Path]]:
        directories = self._take_directories()
        found = self._broker_id(directories) if broker_id is None else broker_id
        self._check_problems()
        assert found is not None
        return found, [Path(directory) for directory in directories]

    def _check_problems(self) -> None:
        if self._problems:
            raise SettingsError("\n".join(self._problems))

    def _refuse(self, name: str, problem: str) -> None:
        begin = f"{self._path}: {name} "
        if not any(line.startswith(begin) for line in self._problems):
            self._problems.append(begin + problem)

    def _has(self, table: str, name: str) -> bool:
        """Whether the command line, or the file under Regent's own name, has a setting."""
        return name in self._given.get(table, {}) or name in self._tables.get(table, {})

    # --- single settings ---

    def _read(self, name: str, text: str) -> None:
        found = _LISTENER.fullmatch(name)
        if found is not None:
            self._read_of_listener(name, text)
            return
        entry = TAKEN.get(name) or OURS.get(name)
        if name in _SECRETS:
            self._take_token_secret(name, text)
        elif name in ("broker.id", "node.id", "zookeeper.connect", "log.dir", "log.dirs"):
            return
        elif any(name == other for rows in _UNITS.values() for other, _ in rows) or name in _UNITS:
            if entry is not None:
                self._take(name, text, *entry)
        elif self._cannot_honour(name, name, text, entry):
            return
        elif name in IGNORED:
            self._ignored.setdefault(IGNORED[name], []).append(name)
        elif entry is not None:
            self._take(name, text, *entry)
        elif name not in REFUSED:
            self._unknown.append(name)

    def _cannot_honour(
        self, shown: str, name: str, text: str, entry: tuple[str, Setting] | None
    ) -> bool:
        """Refuse a value that Regent cannot honour, unless the command line has another."""
        refusal = REFUSED.get(name)
        if refusal is None or refusal.allows(text):
            return False
        if entry is not None and entry[1].name in self._given.get(entry[0], {}):
            return True
        if name == "zookeeper.set.acl" and self._has_own("zookeeper", "secret_file"):
            return True
        secret = entry is not None and entry[1].type is ConfigType.PASSWORD
        value = "" if secret or "password" in name or name == "config.providers" else f"={text}"
        self._refuse(f"{shown}{value}", f"cannot be honoured: {refusal.remedy}")
        return True

    def _has_own(self, table: str, name: str) -> bool:
        """Whether a setting of Regent's is on the command line or anywhere in the file."""
        ours = (row for row in OURS if OURS[row][0] == table and OURS[row][1].name == name)
        return self._has(table, name) or any(row in self._properties for row in ours)

    def _take(self, name: str, text: str, table: str, row: Setting) -> None:
        value = self._value(name, text, table, row)
        if value is not None:
            self._tables.setdefault(table, {})[row.name] = value

    def _value(self, name: str, text: str, table: str, row: Setting) -> Any:
        """Return the value of a setting; None after a problem."""
        if row.name in self._given.get(table, {}):
            return None
        if row.type is ConfigType.PASSWORD and text:
            self._is_secret = self._is_secret or name
        value = row.parsed(text)
        if isinstance(row.default, Mapping):
            value = dict(item.split("=", 1) for item in text.split(",") if "=" in item)
        problem = row.problem(value)
        if problem is not None:
            self._refuse(name, problem)
            return None
        return value

    def _take_token_secret(self, name: str, text: str) -> None:
        if text and not self._has_own("delegation_tokens", "delegation_token_secret_key_file"):
            self._is_secret = self._is_secret or name
            if name == _SECRETS[0] or not self._properties.get(_SECRETS[0]):
                self._secret_files["token-secret"] = text

    def _take_other_units(self) -> None:
        for name, others in _UNITS.items():
            table, row = TAKEN.get(name) or OURS["regent.controller.request.timeout.ms"]
            for other, unit in ((name, 1), *others):
                text = self._properties.get(other)
                if text is None or row.name in self._tables.get(table, {}):
                    continue
                value = row.parsed(text)
                if isinstance(value, int) and value > 0:
                    value *= unit
                problem = row.problem(value)
                if row.name in self._given.get(table, {}):
                    continue
                if problem is None:
                    self._tables.setdefault(table, {})[row.name] = value
                elif other != name or name not in TAKEN:
                    self._refuse(other, problem)

    def _take_directories(self) -> list[str]:
        """Return the log directories. Relative ones are below the working directory, as Kafka's."""
        own = self._given.get("log", {}).get("log_dirs")
        names = self._properties.get("log.dirs") or self._properties.get("log.dir")
        given = own or names or _DEFAULT_LOG_DIR
        directories = [str(Path(one.strip()).absolute()) for one in given.split(",") if one.strip()]
        if own is None:
            self._tables.setdefault("log", {})["log_dirs"] = ",".join(directories)
        return directories or [_DEFAULT_LOG_DIR]

    def _broker_id(self, directories: list[str]) -> int | None:
        """Return the id in the file, or that of the log directories; None after a problem."""
        texts = {self._properties.get(name) for name in ("broker.id", "node.id")} - {None, "", "-1"}
        if not texts and self._properties.get("broker.id", "-1") == "-1":
            texts = {_former_id(Path(directory)) for directory in directories} - {None}
        numbers = {text for text in texts if text is not None and re.fullmatch(r"\d{1,10}", text)}
        if len(texts) != 1 or numbers != texts or int(numbers.copy().pop()) > MAX_BROKER_ID:
            self._refuse(
                "broker.id",
                f"must be one number from 0 to {MAX_BROKER_ID}, the id of this broker: set it, or"
                " use --id",
            )
            return None
        return int(numbers.pop())

    def _check_private(self, name: str) -> None:
        try:
            read_private(self._path, name)
        except RegentError as error:
            self._problems.append(str(error))

    # --- settings of single listeners ---

    def _read_of_listener(self, name: str, text: str) -> None:
        listener, own = self._split(name)
        if listener is None:
            self._unknown.append(name)
            return
        mechanism, _, of_mechanism = own.partition(".")
        if own.endswith(_JAAS) and own.removesuffix(_JAAS) in _MECHANISMS:
            self._is_secret = self._is_secret or name
            try:
                self._logins[listener, own.removesuffix(_JAAS)] = jaas_options(text)
            except ValueError as error:
                self._refuse(name, str(error))
            return
        bare = of_mechanism if mechanism in _MECHANISMS else own
        entry = next(
            (one for one in LISTENER_OPTIONS.values() if one[1].kafka_name == bare),
            OURS.get(bare) if bare in OURS and OURS[bare][1].name in LISTENER_OPTIONS else None,
        )
        if self._cannot_honour(name, bare, text, entry):
            return
        if bare in IGNORED:
            self._ignored.setdefault(IGNORED[bare], []).append(name)
        elif entry is None:
            if bare not in REFUSED:
                self._unknown.append(name)
        elif bare != own:
            self._refuse(
                name, f"cannot be honoured: set listener.name.{listener}.{bare} for all mechanisms"
            )
        else:
            value = self._value(name, text, "", entry[1])
            if value is not None:
                self._of_listeners.setdefault(listener, {})[entry[1].name] = value

    def _split(self, name: str) -> tuple[str | None, str]:
        """Return the listener in the name of a setting, and the rest; None: no such listener."""
        listeners = self._text("broker", "listeners", _DEFAULT_LISTENERS)
        names = re.findall(r"(?:^|,)\s*([A-Za-z0-9._-]+)://", listeners)
        rest = name.removeprefix("listener.name.")
        for listener in sorted((one.lower() for one in names), key=len, reverse=True):
            if rest.startswith(f"{listener}."):
                return listener, rest.removeprefix(f"{listener}.")
        return None, rest

    def _text(self, table: str, name: str, default: str = "") -> str:
        given = self._given.get(table, {}).get(name)
        return str(given or self._properties.get(name.replace("_", "."), "") or default)

    def _take_stores(self) -> None:
        """Find the forms of stores: Java reads PKCS12 also where the type is JKS, the default."""
        general = self._tables.get("tls", {})
        for listener, table in (("", general), *self._of_listeners.items()):
            for store in _STORES:
                where, type_name = f"ssl_{store}_location", f"ssl_{store}_type"
                location = table.get(where)
                if not location or type_name in self._given.get("tls", {}):
                    continue
                stated = table.get(type_name) or general.get(type_name) or "JKS"
                if stated == "JKS":
                    name = f"listener.name.{listener}." if listener else ""
                    self._take_store(f"{name}ssl.{store}.location", Path(location))
                    table[type_name] = "PKCS12"
        for table in (general, *self._of_listeners.values()):
            for store in _STORES:
                if table.get(f"ssl_{store}_type") == "JKS":
                    del table[f"ssl_{store}_type"]  # without a file, or the type of all listeners

    def _take_store(self, name: str, path: Path) -> None:
        try:
            with path.open("rb") as file:
                begin = file.read(4)
        except OSError as error:
            self._refuse(name, f"names {path}, which cannot be read: {error.strerror}")
            return
        if begin in _JKS:
            self._refuse(
                name,
                f"names {path}, a keystore of Java (JKS), which only Java can read: convert it with"
                f" `keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12"
                " -deststoretype PKCS12`, and name that file",
            )
        elif begin.startswith(b"--"):
            self._refuse(name, f"names {path}, which is PEM: set the type beside it to PEM")

    def _take_listeners(self) -> None:
        """Take where brokers find each other, and how they log in."""
        broker = self._tables.setdefault("broker", {})
        if not self._has("broker", "listeners"):
            broker["listeners"] = _DEFAULT_LISTENERS
        both = {**broker, **self._given.get("broker", {})}
        try:
            listeners = Listeners.of(BrokerConfig(**both), {f"broker.{name}" for name in both})
        except ListenersError as error:
            self._problems.append(f"{self._path}: {error}")
            return
        name = listeners.inter_broker_name
        of_brokers = (name, listeners.control_plane_name)
        told = next(one for one in listeners.advertised if one.listener == name)
        if not self._has("broker", "host"):
            broker["host"] = listeners.inter_broker.host
            if not self._has("broker", "advertised_host"):
                broker["advertised_host"] = told.host
        for endpoint in listeners.listening:
            if SecurityProtocol(endpoint.security_protocol).has_sasl:
                self._take_logins(endpoint, is_of_brokers=endpoint.listener in of_brokers)

    def _of_listener(self, listener: str, name: str) -> Any:
        """Return a setting of logins; None: neither the command line nor the file has it."""
        own = self._of_listeners.get(listener, {}).get(name)
        given = self._given.get("sasl", {}).get(name)
        return own or given or self._tables.get("sasl", {}).get(name)

    def _take_logins(self, endpoint: EndPoint, *, is_of_brokers: bool) -> None:
        listener = endpoint.listener.lower()
        own = self._of_listeners.setdefault(listener, {})
        names = ["sasl_enabled_mechanisms"]
        names += ["sasl_mechanism_inter_broker_protocol"] if is_of_brokers else []
        for name in names:
            dotted = f"listener.name.{listener}.{name.replace('_', '.')}"
            is_refused = any(dotted.split(".", 3)[-1] in line for line in self._problems)
            if self._of_listener(listener, name) is None and not is_refused:
                self._refuse(
                    name.replace("_", "."),
                    "is not set: for Kafka it is GSSAPI (Kerberos), which is not offered: set"
                    f" {SaslConfig.sasl_mechanism_inter_broker_protocol}, for example",
                )
        users = self._logins.get((listener, "plain"), {})
        plain = {k.removeprefix(_USER): v for k, v in users.items() if k.startswith(_USER)}
        enabled = str(self._of_listener(listener, "sasl_enabled_mechanisms") or "").split(",")
        if self._of_listener(listener, "sasl_plain_users_file"):
            pass
        elif "PLAIN" in map(str.strip, enabled) and not plain:
            self._refuse(
                f"listener.name.{listener}.plain{_JAAS}",
                'has no user_NAME="password" of a client that logs in: add each here (not in a file'
                " of JAAS), or add regent.sasl.plain.users.file=FILE",
            )
        elif plain:
            own["sasl_plain_users_file"] = f"{listener}-users"
            lines = [f"{user}:plain${password}" for user, password in plain.items()]
            self._secret_files[f"{listener}-users"] = "\n".join((*lines, ""))
        mechanism = self._of_listener(listener, "sasl_mechanism_inter_broker_protocol")
        login = self._logins.get((listener, str(mechanism).lower()), {})
        is_known = self._of_listener(listener, "sasl_inter_broker_password_file")
        if is_of_brokers and not is_known and login.keys() >= {"username", "password"}:
            own["sasl_inter_broker_user"] = login["username"]
            own["sasl_inter_broker_password_file"] = f"{listener}-password"
            self._secret_files[f"{listener}-password"] = login["password"] + "\n"
        elif is_of_brokers and not is_known and mechanism is not None:
            self._refuse(
                f"listener.name.{listener}.{mechanism.lower()}{_JAAS}",
                'has no username="…" and password="…" for the login at other brokers: add it here'
                " (not in a file of JAAS), or use --sasl-inter-broker-user and"
                " --sasl-inter-broker-password-file",
            )

    def _all_tables(self, logins: Path) -> Given:
        """Return what is taken; files of secrets are below ``logins``."""
        tables = dict(self._tables)
        if "token-secret" in self._secret_files:
            key = "delegation_token_secret_key_file"
            tables["delegation_tokens"] = {
                **tables.get("delegation_tokens", {}),
                key: str(logins / "token-secret"),
            }
        of_listeners = {
            listener: {
                name: str(logins / value) if value in self._secret_files else value
                for name, value in table.items()
            }
            for listener, table in self._of_listeners.items()
            if table
        }
        return {**tables, **({"listener_name": of_listeners} if of_listeners else {})}


def _former_id(directory: Path) -> str | None:
    """Return the id of the broker that had a log directory."""
    try:
        text = (directory / "meta.properties").read_text(encoding="iso-8859-1")
        return dict(parse_properties(text)).get("broker.id")
    except (OSError, ValueError):
        return None
