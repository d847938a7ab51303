"""README's transcripts, run from top to bottom on one cluster."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from regent.config.command_line import COMMAND
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ANYTHING = "…"  # stands for the rest of an output
LOOKS = {"show", "describe", "status", "consume"}  # repeated until the output is as expected
PROMPT = "$ "


class Step(NamedTuple):
    """A command of a transcript and its expected output."""

    command: str
    output: str


def transcripts(text: str) -> Iterator[Step]:
    """Yield every command of the shell blocks of a Markdown text, in sequence."""
    for block in re.findall(r"^```\n(\$ .*?)^```$", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Step(command, output)


def shape(output: str) -> list[str]:
    """Return the words of an output without values that differ between runs."""
    without_topic_ids = re.sub(r"TopicId: \S+", "TopicId: #", output)
    return re.sub(r"\d+", "#", without_topic_ids).split()


@pytest.fixture
def shell(tmp_path: Path) -> list[str]:
    """A command line that runs a shell command in a directory like a fresh clone."""
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "activate").write_text(f'PATH="{scripts}:$PATH"\n')
    (scripts / "regent").write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    (scripts / "regent").chmod(0o755)
    return ["bash", "-o", "pipefail", "-c"]


def test_the_readmes_commands_print_what_it_shows(tmp_path: Path, shell: list[str]) -> None:
    steps = list(transcripts((ROOT / "README.md").read_text(encoding="utf-8")))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REGENT_")}
    prelude: list[str] = []

    def perform(step: Step) -> bool:
        ended = subprocess.run(
            [*shell, "\n".join((*prelude, step.command))],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=scaled(120),
            check=False,
        )
        printed, expected = shape(ended.stdout), shape(step.output)
        if ANYTHING in expected:
            expected = expected[: expected.index(ANYTHING)]
            printed = printed[: len(expected)]
        if (ended.returncode, printed) != (0, expected):
            raise LookupError(f"{step.command}: {ended}")
        return True

    with RegentCluster(tmp_path / "data") as cluster:
        for broker_id in range(3):  # each has reported that it is ready
            assert {b.broker_id for b in cluster.metadata(broker_id).brokers} == {0, 1, 2}
        for step in steps:
            if step.command.startswith("source "):
                prelude.append(step.command)
            elif LOOKS & set(step.command.split()):
                eventually(partial(perform, step), step.command)
            else:
                perform(step)
        children = [broker["pid"] for broker in cluster.description["brokers"]]
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(scaled(60)) == 0
    assert len(children) == 3
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(steps) > 10
