"""The options of reads and of ``write_once``, named and meant as in Spark's Kafka connector.

Spark passes the names in lower case. An invalid option raises ``OptionError`` with a message of one
line, before any file is read and any connection is made.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.jobs.source.worker_files import WorkerFiles

CONNECTOR: Final = "Spark's Kafka connector (org.apache.spark:spark-sql-kafka-0-10_2.13)"
_KAFKA: Final = "kafka."
BATCH_NUMBER: Final = "batchNumber"
"""The option of a write that only ``write_once`` sets."""
_SERVERS: Final = "bootstrap.servers"
_TRANSACTION: Final = "transactional.id"
_ONE_OF: Final = "set exactly one of subscribe, subscribePattern"
_FIXED: Final = {
    "acks": "every write waits for all in-sync replicas",
    "enable.idempotence": "every write is idempotent",
}

_log = logging.getLogger(__name__)


class OptionError(RegentError):
    """An option or a column is invalid; the message names it."""


class DataLossError(RegentError):
    """Records to read are lost."""


@dataclass(frozen=True)
class Subscription:
    """The topics to read: these, or those that match a regex."""

    topics: tuple[str, ...] = ()
    pattern: str = ""

    def select(self, there: Iterable[TopicPartition], place: str) -> list[TopicPartition]:
        """Return the partitions to read of those in a place, sorted.

        Raises ``OptionError`` if a topic that is named is not there.
        """
        existing = sorted(there)
        topics = {partition.topic for partition in existing}
        missing = [topic for topic in self.topics if topic not in topics]
        if missing:
            raise OptionError(f"there is no topic {missing[0]} in {place}")
        pattern = re.compile(self.pattern)
        return [p for p in existing if p.topic in self.topics or pattern.fullmatch(p.topic)]


class ReadOptions(NamedTuple):
    """Validated options of a read."""

    subscription: Subscription
    log_dirs: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_uncommitted: bool = False
    files: WorkerFiles = WorkerFiles()

    def report_data_loss(self, text: str) -> None:
        """See ``report_data_loss``."""
        report_data_loss(text, is_error=self.fail_on_data_loss)


class JournalOptions(NamedTuple):
    """Validated options of a stream of journals: their folders."""

    journals: tuple[str, ...]
    fail_on_data_loss: bool = True

    def report_data_loss(self, text: str) -> None:
        """See ``report_data_loss``."""
        report_data_loss(text, is_error=self.fail_on_data_loss)


def report_data_loss(text: str, *, is_error: bool) -> None:
    """Raise ``DataLossError``, or log what is lost."""
    if is_error:
        raise DataLossError(f"{text} (failOnDataLoss=false reads what exists)")
    _log.warning("%s: continuing with what exists", text)


class WriteOptions(NamedTuple):
    """Validated options of ``write_once``; ``kafka`` configures librdkafka."""

    number: int
    topic: str
    kafka: Mapping[str, str]


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read. Raises ``OptionError``."""
    found, kafka = _parsed(options, _READ)
    if kafka or "log_dirs" not in found:
        text = "regent reads logDirs, the log directories of brokers, or journals"
        raise OptionError(f"{text}: to read through brokers use the format kafka, {CONNECTOR}")
    if "subscription" not in found:
        raise OptionError(_ONE_OF)
    return ReadOptions(**_with_files(found))


def reads_journals(options: Mapping[str, str]) -> bool:
    """Return whether a read is one of journals."""
    return _JOURNALS_OPTION in {name.lower() for name in options}


def journal_options(options: Mapping[str, str]) -> JournalOptions:
    """Check the options of a stream of journals. Raises ``OptionError``."""
    found, kafka = _parsed(options, _JOURNALS)
    if kafka:
        raise OptionError(f"kafka.{min(kafka)} has no meaning for journals")
    return JournalOptions(**found)


def _with_files(found: dict[str, Any]) -> dict[str, Any]:
    files = WorkerFiles(found.pop("hadoop", {}), found.pop("jars", ""))
    return {**found, "files": files}


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of ``write_once``. Raises ``OptionError``."""
    found, kafka = _parsed(options, _WRITE)
    if "number" not in found:
        raise OptionError(f"regent writes only with write_once: use the format kafka, {CONNECTOR}")
    for name in kafka.keys() & _FIXED.keys():
        raise OptionError(f"kafka.{name} cannot be set: {_FIXED[name]}")
    if not kafka.get(_SERVERS, "").strip():
        raise OptionError(f"kafka.{_SERVERS} is missing: HOST:PORT,… of some brokers")
    if "topic" not in found:
        raise OptionError("topic is missing: write_once writes into one topic")
    if not kafka.get(_TRANSACTION, "").strip():
        raise OptionError(f"kafka.{_TRANSACTION} is missing: a name that stays with the query")
    return WriteOptions(**found, kafka=kafka)


def _parsed(options: Mapping[str, str], known: _Known) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the options by field, and the settings of librdkafka: ``kafka.*``."""
    names = {name.lower(): name for name in known}
    found: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    for given, text in ((name.lower(), text) for name, text in options.items()):
        if given.startswith(_KAFKA):
            kafka[given.removeprefix(_KAFKA)] = text
            continue
        if given not in names:
            message = f"regent has no option {given!r}; it has {', '.join(known)}"
            raise OptionError(f"{message}; {CONNECTOR} has more")
        if not text.strip():
            raise OptionError(f"{names[given]} is empty")
        name, value_of = known[names[given]]
        if name in found:
            raise OptionError(_ONE_OF)
        found[name] = value_of(names[given], text.strip())
    return found, kafka


# --- values: each function gets the name of an option and its text ---


def _names(name: str, text: str) -> list[str]:
    names = sorted({part.strip() for part in text.split(",")} - {""})
    if not names:
        raise OptionError(f"{name}={text!r} has no name")
    return names


def _topics(name: str, text: str) -> Subscription:
    return Subscription(topics=tuple(_names(name, text)))


def _pattern(name: str, text: str) -> Subscription:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"{name}={text!r}: {error}") from None
    return Subscription(pattern=text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{name}={text!r} is neither true nor false")
    return text.lower() == "true"


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{name}={text!r} is not a number from 0 on")
    return int(text)


def _settings(name: str, text: str) -> dict[str, str]:
    """Return the settings of ``{"fs.s3a.endpoint": "http://store:9000"}``."""
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is not JSON: {error}") from None
    if not isinstance(settings, dict) or not all(type(v) is str for v in settings.values()):
        raise OptionError(f'{name}: expected JSON as {{"fs.s3a.endpoint": "http://store:9000"}}')
    return settings


_JOURNALS_OPTION: Final = "journals"
_Known: TypeAlias = Mapping[str, tuple[str, Callable[[str, str], Any]]]
"""The field and the function of each option."""
_OF_FILES: Final[_Known] = {
    "hadoop": ("hadoop", _settings),
    "jars": ("jars", lambda _, text: text),
}
_JOURNALS: Final[_Known] = {
    _JOURNALS_OPTION: ("journals", lambda *given: tuple(_names(*given))),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
}
_READ: Final[_Known] = {
    "subscribe": ("subscription", _topics),
    "subscribePattern": ("subscription", _pattern),
    "logDirs": ("log_dirs", lambda *given: tuple(_names(*given))),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "includeHeaders": ("include_headers", _flag),
    "includeUncommitted": ("include_uncommitted", _flag),
    **_OF_FILES,
}
_WRITE: Final[_Known] = {
    "topic": ("topic", lambda _, text: text),
    BATCH_NUMBER: ("number", _number),
}
