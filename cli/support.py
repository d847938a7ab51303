"""``support bundle``: what explains a failure, in one file without secrets."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import click
import orjson

from regent import __version__
from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import examples
from regent.cli.status import examine_status
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.doctor.diagnosis import diagnose
from regent.client.doctor.examined_cluster import ExaminedCluster, examine
from regent.client.journals import Journals
from regent.client.pauses import pauses
from regent.cluster.cluster_file import BrokerEntry
from regent.config.addresses import bracketed
from regent.config.private_files import read_private
from regent.config.threads import STACKS_FILE, STACKS_SIGNAL
from regent.core.errors import RegentError

_MAX_FILE_BYTES: Final = 32 * 1024 * 1024
_METRICS_S: Final = 5.0
_METRICS_TLS: Final = "regent.metrics.tls"
_METRICS_TOKEN: Final = "regent.metrics.token.file"
_STACKS_S: Final = 3.0
_JOURNAL_BYTES: Final = 8 * 1024 * 1024  # of the end of each, over the network
_SMALLEST_SECRET: Final = 6  # characters; a shorter one would blacken ordinary words
_LARGEST_SECRET_FILE: Final = 65_536
_OMITTED: Final = b"(secret)"
_ASSIGNMENT: Final = re.compile(
    rb"(?i)([\w.-]*(?:password|secret|token|jaas|private[._-]?key|keystore[._-]key)[\w.-]*"
    rb"[\"']?\s*[=:]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;}\]]+)"
)
_PEM: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL
)
_SECRET_FILES: Final = ("*.secret", "*.token", "*.password", "*.key")
_TEXTS: Final = ("*.log", "*.log.*", "events.jsonl", "events.jsonl.*")


class SupportError(RegentError):
    """The bundle cannot be written."""


@click.group(cls=HelpfulGroup)
def support() -> None:
    """Collect what explains a failure."""


@support.command(epilog=examples("support bundle", "support bundle --file /tmp/regent.tar.gz"))
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; default: regent-support-TIME.tar.gz here. It must not exist.",
)
@pass_cluster
def bundle(cluster: Cluster, /, path: Path | None) -> None:
    """Write logs, journals, znodes, metrics, stacks, settings and findings into one .tar.gz.

    Logs, metrics and the stacks of threads are those of brokers on this machine, also of one that
    hangs. With --zookeeper the brokers read their journals for us. If the metrics are encrypted,
    --command-config says whom to trust.

    Only its owner may read it. Users, tokens, passwords and private keys are left out: the znodes
    of users, brokers' settings and tokens, and everything that a file of secrets in the data
    directory has. What cannot be read is listed in problems.txt. Look through it before you send
    it: names of topics, groups, hosts and users are in it.
    """
    target = path or Path(time.strftime("regent-support-%Y%m%dT%H%M%S.tar.gz"))
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise SupportError(f"{target}: {error.strerror}; name another with --file") from None
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        Bundle(archive, cluster).write()
    click.echo(f"{target} has {target.stat().st_size:,} bytes")


class Bundle:
    """Collects into an archive; a part that fails does not end the others."""

    def __init__(self, archive: tarfile.TarFile, cluster: Cluster) -> None:
        self._archive = archive
        self._cluster = cluster
        self._data_dir: Path | None = None
        self._problems: list[str] = []
        self._secrets: list[bytes] = []
        self._examined = ExaminedCluster()

    def write(self) -> None:
        """Write all parts."""
        with self._part("cluster"):
            self._data_dir = self._cluster.data_dir
        if self._data_dir is not None:
            self._secrets = sorted(_secrets_in(self._data_dir), key=len, reverse=True)
        self._add("version.txt", f"regent {__version__}\n".encode())
        for name, collect in (
            ("status.json", lambda: examine_status(self._cluster)),
            ("doctor.json", lambda: [f.json for f in diagnose(self._cluster, self._data_dir)]),
            ("settings.json", self._settings),
            ("znodes.json", self._znodes),
        ):
            self._json(name, collect)
        if self._data_dir is not None:
            for file in _files(self._data_dir):
                with self._part(str(file)):
                    self._add(f"files/{file.relative_to(self._data_dir)}", _tail(file))
            self._processes(self._data_dir)
        else:
            with self._part("journals"):
                self._add("journals/events.jsonl", self._journals())
        self._add("problems.txt", "".join(f"{line}\n" for line in self._problems).encode())

    def _json(self, name: str, collect: Callable[[], object]) -> None:
        with self._part(name):
            option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
            self._add(name, orjson.dumps(collect(), option=option))

    def _part(self, name: str) -> _Part:
        return _Part(name, self._problems)

    def _add(self, name: str, data: bytes) -> None:
        for secret in self._secrets:
            data = data.replace(secret, _OMITTED)
        data = _PEM.sub(_OMITTED, _ASSIGNMENT.sub(rb"\1" + _OMITTED, data))
        member = tarfile.TarInfo(f"regent-support/{name}")
        member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
        self._archive.addfile(member, io.BytesIO(data))

    def _settings(self) -> object:
        """The settings of brokers: they do not tell those that are secret."""
        self._examined = examine(self._cluster, self._data_dir)[0]
        return dict(self._examined.settings)

    def _znodes(self) -> object:
        with self._cluster.admin() as admin:
            return {
                path: "(left out)" if data is None else data.decode("utf-8", "replace")
                for path, data in admin.read_data()
            }

    def _journals(self) -> bytes:
        """Let the brokers read their journals for us."""
        say = self._problems.append
        with closing(Journals(self._cluster, None, None, 0, say, _JOURNAL_BYTES)) as journals:
            if not journals.look():
                raise SupportError(journals.none())
            return "".join(f"{event.line}\n" for event in journals.new()).encode()

    def _processes(self, data_dir: Path) -> None:
        file = self._cluster.file
        for broker in () if file is None else file.brokers.values():
            name = f"broker-{broker.id}"
            with self._part(f"metrics of {name}"):
                self._add(f"metrics/{name}.txt", self._metrics(broker))
            with self._part(f"threads of {name}"):
                self._add(f"threads/{name}.txt", _threads(broker.pid))
            with self._part(f"stacks of {name}"):
                if broker.pid not in self._examined.processes:
                    raise SupportError(f"its process {broker.pid} has ended")
                self._add(f"stacks/{name}.txt", _stacks(broker.pid, data_dir / name))

    def _metrics(self, broker: BrokerEntry) -> bytes:
        """Return the metrics, by the way that the broker's settings demand."""
        settings = self._examined.settings.get(broker.id, {})
        has_tls, context = settings.get(_METRICS_TLS) == "true", None
        scheme = "https" if has_tls else "http"
        request = urllib.request.Request(
            f"{scheme}://{bracketed(broker.host)}:{broker.metrics_port}/metrics"
        )
        if has_tls:
            if SECURITY_OF_COMMAND.config is None:
                raise SupportError(
                    "they are encrypted: --command-config with ssl.truststore.location says whom to"
                    " trust"
                )
            from regent.transport.kafka.tls import client_context

            context = client_context(SECURITY_OF_COMMAND.config.tls())
        if path := settings.get(_METRICS_TOKEN):
            token = read_private(Path(path), "the token of the metrics port").strip()
            self._secrets = [token, *self._secrets]
            request.add_header("Authorization", f"Bearer {token.decode()}")
        with urllib.request.urlopen(request, timeout=_METRICS_S, context=context) as answer:
            data: bytes = answer.read(_MAX_FILE_BYTES)
            return data


class _Part:
    """A block whose failure is a line of problems.txt."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self._name = name
        self._problems = problems

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, (RegentError, OSError, ValueError)):
            self._problems.append(f"{self._name}: {error}")
            return True
        return False


def _files(data_dir: Path) -> Iterator[Path]:
    """Yield logs and journals: of the data directory and of each process in it, no records."""
    for folder in (data_dir, *sorted(data_dir.glob("*/"))):
        for pattern in _TEXTS:
            yield from (f for f in sorted(folder.glob(pattern)) if _is_text(f))


def _is_text(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _tail(path: Path) -> bytes:
    """Return the end of a file."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _MAX_FILE_BYTES, 0))
        return file.read(_MAX_FILE_BYTES)


def _secrets_in(data_dir: Path) -> set[bytes]:
    """Return what files of secrets in a data directory have: their lines, and parts of logins."""
    found: set[bytes] = set()
    for pattern in _SECRET_FILES:
        for path in data_dir.rglob(pattern):
            is_public = path.parent.name == "allowed"
            if is_public or not _is_text(path) or path.stat().st_size > _LARGEST_SECRET_FILE:
                continue
            with suppress(OSError):
                lines = path.read_bytes().splitlines()
                if path.name.endswith(".secret") and len(lines) > 1:
                    lines = lines[1:]  # the first line is the public key
                for line in lines:
                    found |= {line.strip(), line.partition(b":")[2].strip()}
    return {secret for secret in found if len(secret) >= _SMALLEST_SECRET}


def _stacks(pid: int, folder: Path) -> bytes:
    """Let a process write the stacks of its threads, and return them; it may hang.

    The signal would end a process that does not wait for it, as a broker of an earlier release.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if caught is None or not int(caught[1], 16) & (1 << (STACKS_SIGNAL - 1)):
        raise SupportError(f"process {pid} writes none: its release is an earlier one")
    path = folder / STACKS_FILE
    begin = size = path.stat().st_size
    os.kill(pid, STACKS_SIGNAL)
    for _ in pauses(time.monotonic() + _STACKS_S):
        before, size = size, path.stat().st_size
        if size == before > begin:
            break
    if size == begin:
        raise SupportError(f"process {pid} has written none within {_STACKS_S:.0f} s")
    with path.open("rb") as file:
        file.seek(begin)
        return file.read(_MAX_FILE_BYTES)


def _threads(pid: int) -> bytes:
    """Return the threads of a process: name, state, and processor time in ticks."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        name = (task / "comm").read_text().strip()
        lines.append(f"{task.name}\t{name}\t{fields[0]}\t{int(fields[11]) + int(fields[12])}\n")
    return "".join(lines).encode() + Path(f"/proc/{pid}/status").read_bytes()
