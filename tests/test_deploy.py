"""The files of deploy/ as text: they parse, and name settings, options and ports that exist.

Others check their form: Kubernetes' schemas, that of Compose, and systemd. No container is started
here.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from regent.broker.broker_process import BrokerOptions
from regent.cli.broker import broker
from regent.config.private_files import write_private
from regent.config.settings import SETTING_OPTIONS, Settings
from regent.config.settings_file import load_settings
from regent.config.tables.broker import BrokerConfig
from regent.testing.waits import scaled

DEPLOY = Path(__file__).parents[1] / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
PORTS = {
    "clients": BrokerConfig.port,
    "control": BrokerConfig.control_port,
    "replication": BrokerConfig.replication_port,
    "metrics": BrokerConfig.metrics_port,
}
OPTIONS = {option for parameter in broker.params for option in parameter.opts}
OTHER_VARIABLES = {"REGENT_PORT"}  # a comment warns of it


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_variable_is_a_setting(path: Path) -> None:
    named = set(re.findall(r"\bREGENT_[A-Z_]+[A-Z]\b", path.read_text())) - OTHER_VARIABLES
    known = {f"REGENT_{name.upper()}" for name in SETTING_OPTIONS}
    assert named - known - {"REGENT_NAME"} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_option_of_a_broker_exists(path: Path) -> None:
    lines = re.findall(r"\bbroker --id.*(?:\n +--.*)*", path.read_text())
    given = {word for line in lines for word in shlex.split(line) if word.startswith("--")}
    assert given <= OPTIONS


# --- what others say of the form ------------------------------------------------------------------

KUBERNETES = ("1.25", kubernetes_validate.latest_version())
"""The oldest release whose schemas the package has, and the newest."""


@pytest.mark.parametrize("release", KUBERNETES)
def test_kubernetes_knows_every_field(release: str) -> None:
    manifests = documents("kubernetes/brokers.yaml")
    for manifest in manifests:
        kubernetes_validate.validate(manifest, release, strict=True)
    (container,) = manifests[2]["spec"]["template"]["spec"]["containers"]
    container["readinessProb"] = container.pop("readinessProbe")
    with pytest.raises(kubernetes_validate.ValidationError, match="readinessProb"):
        kubernetes_validate.validate(manifests[2], release, strict=True)


@pytest.mark.parametrize("key", ["stop_grace_period", "stop_grace_perod"])
def test_compose_knows_every_key(tmp_path: Path, key: str) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    file = tmp_path / "compose.yaml"
    file.write_text(text.replace("stop_grace_period", key))
    command = ("check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))
    checked = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )
    assert (checked.returncode == 0) is (key in text), checked.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("key", ["TimeoutStopSec", "TimeoutStopSex"])
def test_systemd_knows_every_key(tmp_path: Path, key: str) -> None:
    text = (DEPLOY / "regent-broker.service").read_text()
    unit = tmp_path / "regent-broker.service"
    is_there = text.replace("/opt/regent/bin/regent", sys.executable)
    unit.write_text(is_there.replace("TimeoutStopSec", key))
    command = ["systemd-analyze", "verify", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=scaled(30), check=False)
    ours = [line for line in said.stderr.splitlines() if unit.name in line]
    assert [line for line in ours if key not in line] == []
    assert (not ours) is (key in text), said.stderr


def environments() -> Iterator[dict[str, str]]:
    for service in documents("compose.yaml")[0]["services"].values():
        if "environment" in service:
            yield service["environment"]
    for document in documents("kubernetes/brokers.yaml"):
        if document["kind"] == "StatefulSet":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            rows = {row["name"]: row["value"] for row in container["env"]}
            yield {**rows, "REGENT_ADVERTISED_HOST": "regent-0.regent"}


@pytest.mark.parametrize("environment", list(environments()))
def test_a_broker_takes_these_settings(environment: dict[str, str]) -> None:
    tables: dict[str, dict[str, Any]] = {}
    for name, text in environment.items():
        if name.startswith("REGENT_"):
            table, row = SETTING_OPTIONS[name.removeprefix("REGENT_").lower()]
            value = text == "true" if isinstance(row.default, bool) else text
            tables.setdefault(table, {})[row.name] = value
    assert load_settings(None, tables).broker.allow_unauthenticated


def test_the_ports_of_kubernetes_are_the_defaults() -> None:
    service, _, brokers = documents("kubernetes/brokers.yaml")
    assert {row["name"]: row["port"] for row in service["spec"]["ports"]} == PORTS
    pod = brokers["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert {row["name"]: row["containerPort"] for row in container["ports"]} == PORTS
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(PORTS["metrics"])
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "metrics"
    assert pod["spec"]["enableServiceLinks"] is False, "else REGENT_PORT is a service's address"


def test_the_parts_of_the_statefulset_belong_together() -> None:
    service, budget, brokers = documents("kubernetes/brokers.yaml")
    labels = brokers["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert brokers["spec"]["selector"]["matchLabels"] == labels
    assert brokers["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    (container,) = brokers["spec"]["template"]["spec"]["containers"]
    (claim,) = brokers["spec"]["volumeClaimTemplates"]
    assert [row["name"] for row in container["volumeMounts"]] == [claim["metadata"]["name"]]


def test_kubernetes_does_not_open_the_files_of_a_broker_to_its_group() -> None:
    brokers = documents("kubernetes/brokers.yaml")[2]
    pod = brokers["spec"]["template"]["spec"]
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    words = shlex.split(container["args"][0])
    data_dir = Path(words[words.index("--data-dir") + 1])
    assert Path(mount["mountPath"]) in data_dir.parents, "a start changes the mode of this folder"


def test_each_broker_of_compose_has_its_own_id_address_and_data() -> None:
    (compose,) = documents("compose.yaml")
    services = {n: s for n, s in compose["services"].items() if n.startswith("broker")}
    for number, (name, service) in enumerate(services.items()):
        words = shlex.split(service["command"])
        assert words[words.index("--id") + 1] == str(number)
        assert service["environment"]["REGENT_ADVERTISED_HOST"] == name
        (volume,) = service["volumes"]
        assert volume == f"{name}:{words[words.index('--data-dir') + 1]}"
        assert name in compose["volumes"]
    assert len(services) == 3


def test_the_image_shows_the_default_ports() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    exposed = re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)
    assert exposed is not None
    assert [int(port) for port in exposed[1].split()] == list(PORTS.values())
    assert f"127.0.0.1:{PORTS['metrics']}/health" in text
    assert "HEALTHCHECK --start-period=" in text


def test_kubernetes_can_see_that_the_user_of_the_image_is_not_root() -> None:
    """With ``runAsNonRoot`` it refuses an image whose user is a name."""
    pod = documents("kubernetes/brokers.yaml")[2]["spec"]["template"]["spec"]
    user = pod["securityContext"]["runAsUser"]
    text = (DEPLOY / "Dockerfile").read_text()
    assert f"\nUSER {user}\n" in text
    assert f" useradd --uid {user} " in text


def test_all_wait_for_the_longest_controlled_shutdown() -> None:
    unit = (DEPLOY / "regent-broker.service").read_text()
    found = re.search(r"^TimeoutStopSec=([0-9]+)$", unit, re.MULTILINE)
    assert found is not None
    (compose,) = documents("compose.yaml")
    pod = documents("kubernetes/brokers.yaml")[2]["spec"]["template"]["spec"]
    one, tries = BrokerConfig, BrokerConfig.controlled_shutdown_max_retries
    asking_s = tries * one.controlled_shutdown_timeout_ms / 1_000
    pauses_s = (tries - 1) * one.controlled_shutdown_retry_backoff_ms / 1_000
    closing_s = 120  # its parts end, and its logs are written
    for given_s in (int(found[1]), pod["terminationGracePeriodSeconds"]):
        assert given_s >= asking_s + pauses_s + closing_s
    for name, service in compose["services"].items():
        if name.startswith("broker"):
            assert service["stop_grace_period"] == f"{int(found[1]) // 60}m"


def test_what_compose_runs_comes_back_with_its_data() -> None:
    (compose,) = documents("compose.yaml")
    kept = {"zookeeper": {"/data", "/datalog"}}
    for name, service in compose["services"].items():
        assert service["restart"] == "unless-stopped"
        volumes = dict(volume.split(":") for volume in service["volumes"])
        assert volumes.keys() <= compose["volumes"].keys()
        assert set(volumes.values()) == kept.get(name, {"/var/lib/regent"})


def test_the_unit_leaves_the_guardian_of_a_dead_broker_alive() -> None:
    assert "\nKillMode=process\n" in (DEPLOY / "regent-broker.service").read_text()


@pytest.mark.parametrize("has_file", [False, True])
def test_a_broker_starts_with_what_the_unit_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_file: bool
) -> None:
    """The shell splits words where systemd does: at blanks of ``$NAME``, not of ``${NAME}``."""
    text = (DEPLOY / "regent-broker.service").read_text()
    assert "\nStateDirectory=regent\n" in text
    assert "--data-dir /var/lib/regent/" in text, "ProtectSystem=strict: nothing else is writable"
    lines = re.findall(r"^#   ([A-Z_]+)=(.*)$", text, re.MULTILINE)
    file = tmp_path / "broker.toml"
    write_private(file, "[broker]\nport = 9999\n")
    variables = {name: value.replace("/etc/regent/broker.toml", str(file)) for name, value in lines}
    if not has_file:
        del variables["BROKER_OPTIONS"]
    command = re.search(r"^ExecStart=\S+/regent broker (.*)$", text, re.MULTILINE)
    assert command is not None
    words = command[1]
    for name in ("BROKER_ID", "ZOOKEEPER"):
        words = words.replace(f"${{{name}}}", variables[name])
    words = words.replace("$BROKER_OPTIONS", variables.get("BROKER_OPTIONS", ""))
    started = list[tuple[BrokerOptions, Settings]]()
    monkeypatch.setattr(
        "regent.cli.broker._start", lambda options, settings, _: started.append((options, settings))
    )
    of_settings = {n: v for n, v in variables.items() if n.startswith("REGENT_")}
    result = CliRunner().invoke(broker, shlex.split(words), env=of_settings)
    assert result.exit_code == 0, result.output
    ((options, settings),) = started
    assert (options.broker_id, settings.broker.host) == (0, variables["REGENT_HOST"])
    assert settings.broker.port == (9999 if has_file else BrokerConfig.port)


def test_docs_and_commands_name_the_unit() -> None:
    root = DEPLOY.parent
    files = (*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("cli/*.py"))
    text = "\n".join(path.read_text() for path in files)
    named = set(re.findall(r"systemctl\s+(?:start|stop|restart|enable)\s+(regent[\w@.-]*)", text))
    assert {name.removesuffix(".service") for name in named} == {"regent-broker"}
    unit = (DEPLOY / "regent-broker.service").read_text()
    data_dir = re.search(r" (--data-dir \S+) ", unit)
    assert data_dir is not None
    assert f" {data_dir[1]} " in (root / "docs" / "security.md").read_text()
