"""The secure cluster on three machines of docs/security.md: its commands, in network namespaces."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.command_line import COMMAND
from regent.testing.regent_cluster import START_TIMEOUT_S
from regent.testing.waits import await_end, eventually, next_line, scaled
from tests.support.network_namespaces import Host, HostNetwork, NamespacesUnavailableError

Settings: TypeAlias = dict[str, str | int | float | bool]
"""What a client of librdkafka needs."""

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SECTION = re.compile(r"## A secure cluster on three machines\n(.*?)\n## ", re.DOTALL)
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
ON = re.compile(r"# on (\S+)")
PASSWORD = "a password with = and ; in it"
COMMANDS = 10
TIMEOUT_S = scaled(60.0)
# A copy to another machine is one to its folder; `regent` is this one.
SHELL = """
regent() {{ {command} "$@"; }}
scp() {{ for last; do :; done; cp -p "${{@:2:$#-2}}" "{folder}/${{last%:}}/"; }}
"""


class Machines:
    """Three machines and one for clients, with a folder each. Runs the commands of the page."""

    def __init__(self, network: HostNetwork, folder: Path) -> None:
        self._network = network
        *machines, self.client = network.hosts
        self._folder = folder
        self._hosts = {host.ipv4: host for host in machines}
        self._addresses = {f"192.0.2.1{n}": host.ipv4 for n, host in enumerate(machines)}
        self._processes: list[subprocess.Popen[str]] = []
        for address in self._hosts:
            (folder / address).mkdir()
        self.first = folder / machines[0].ipv4
        found = SECTION.search(PAGE.read_text())
        assert found is not None
        kinds = [(kind, self._with_addresses(text)) for kind, text in BLOCK.findall(found[1])]
        (_, settings), (_, properties), (_, self.commands), (_, self.of_clients) = kinds
        (self.first / "secure.toml").write_text(settings)
        self._write_private("admin.properties", properties.replace("PASSWORD", PASSWORD))
        self._write_private("admin.password", PASSWORD)

    def _write_private(self, name: str, text: str) -> None:
        path = self.first / name
        path.write_text(text)
        path.chmod(0o600)

    def _with_addresses(self, text: str) -> str:
        """Write the addresses of these machines in the place of those of the page."""
        prefix = next(iter(self._hosts)).removesuffix("0")
        return text.replace("192.0.2.1$", f"{prefix}$").replace("192.0.2.1", prefix)

    def set_up(self) -> str:
        """Run all commands; return the output of the last one."""
        host, output, count = next(iter(self._hosts.values())), "", 0
        for line in self.commands.splitlines():
            on = ON.fullmatch(line)
            if on is not None:
                host = self._hosts[on[1]]
                continue
            count += 1
            if line.endswith(" &"):
                self._start(host, line.removesuffix(" &"))
            else:
                output = self.run(host, line)
        assert count == COMMANDS
        return output

    def run(self, host: Host, line: str) -> str:
        """Run a command on a machine; return its output."""
        ended = self._run(host, line)
        expected = int(" doctor " in line)  # ZooKeeper's protocol is not encrypted: a warning
        assert ended.returncode == expected, f"{line}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def _run(self, host: Host, line: str) -> subprocess.CompletedProcess[str]:
        with host.inside():
            return subprocess.run(
                ["bash", "-c", self._shell() + line],
                cwd=self._folder / host.ipv4,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )

    def on_first(self, line: str) -> str:
        """Run a command on the first machine."""
        return self.run(next(iter(self._hosts.values())), line)

    def told(self, command: str) -> str:
        """Return what a command on the first machine says; it has its own key."""
        host = self._hosts[self.first.name]
        cluster = f"--zookeeper {host.ipv4}:2181 --keys operator"
        secret = "REGENT_ZOOKEEPER_SECRET=zookeeper.secret"
        ended = self._run(host, f"{secret} regent {command} {cluster}")
        return ended.stdout + ended.stderr

    def allow_commands(self) -> None:
        """Let all brokers allow the key of the commands of the first machine."""
        key = self.on_first("regent keys make --keys operator").strip()
        for number, host in enumerate(self._hosts.values()):
            self.run(host, f"regent keys allow first {key} --data-dir broker-{number}")

    def folder_of(self, number: int) -> Path:
        """Return the data directory of a broker."""
        return self._folder / list(self._hosts)[number] / f"broker-{number}"

    def pid_of(self, number: int) -> int:
        """Return the process of a broker."""
        return self._processes[1 + number].pid

    def start_again(self, number: int) -> None:
        """Start a broker that has ended, with the command of the page."""
        host = list(self._hosts.values())[number]
        begin = f"regent broker --id {number} "
        (line,) = (line for line in self.commands.splitlines() if line.startswith(begin))
        await_end(self._processes[1 + number], f"broker {number}")
        self._start(host, line.removesuffix(" &"))
        self._processes[1 + number] = self._processes.pop()

    def _shell(self) -> str:
        return SHELL.format(command=" ".join(COMMAND), folder=self._folder)

    def _start(self, host: Host, line: str) -> None:
        words = line.split()
        assert words[0] == "regent"
        with host.inside():
            process = subprocess.Popen(
                ending_with_this_process([*COMMAND, *words[1:]]),
                cwd=self._folder / host.ipv4,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        self._processes.append(process)
        ready = next_line(process, f"{line} is ready", START_TIMEOUT_S)
        assert ready.startswith("ready: "), f"{ready!r} {await_end(process, line)}"

    def end(self) -> None:
        """End what runs."""
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                await_end(process, "a process of a machine")
            except AssertionError:
                process.kill()
                await_end(process, "a killed process of a machine")

    def kill_broker(self, number: int) -> None:
        """Kill a broker; ZooKeeper is the first process."""
        self._processes[1 + number].kill()

    def losing(self, number: int, share: float) -> AbstractContextManager[None]:
        """Lose this share of the packets to and from the machine of a broker."""
        return self._network.losing(list(self._hosts.values())[number], share)

    def settings(self, user: str, password: str) -> Settings:
        """Return what a client of librdkafka needs."""
        return {
            "bootstrap.servers": ",".join(f"{address}:9092" for address in self._hosts),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.first / "ca.pem"),
            "log_level": 0,
        }


@contextmanager
def secure_machines(folder: Path) -> Iterator[Machines]:
    """Machines; this thread is on that of the clients. Skips where there are no namespaces."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(HostNetwork(4))
        except NamespacesUnavailableError as error:
            pytest.skip(str(error))
        made = Machines(network, folder)
        stack.callback(made.end)
        stack.enter_context(made.client.inside())
        yield made


def produced(settings: Settings, values: Sequence[str], topic: str = "orders") -> list[str]:
    """Write records to a topic; return the errors."""
    producer = Producer({**settings, "enable.idempotence": True, "message.timeout.ms": 20_000})
    errors: list[str] = []

    def note(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error.name())

    for value in values:
        producer.produce(topic, value.encode(), on_delivery=note)
    assert producer.flush(TIMEOUT_S) == 0
    return errors


def consumed(settings: Settings, group: str, count: int, topic: str = "orders") -> list[str]:
    """Read so many records of a topic, and store the group's position."""
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[str] = []

    def are_read() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append((message.value() or b"").decode())
        return len(values) >= count

    try:
        eventually(are_read, f"{count} records are read", TIMEOUT_S)
    finally:
        consumer.close()
    return sorted(values)
