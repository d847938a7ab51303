"""The format of results, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest

from regent.cli.output import note, print_json, print_table, quoted
from regent.client.wording import counted, listed
from regent.testing.waits import scaled


class Terminal(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        written = self.buffer
        assert isinstance(written, io.BytesIO)
        return written.getvalue().decode()


def on_terminal(monkeypatch: pytest.MonkeyPatch, stream: str) -> Terminal:
    """Make ``stream`` a terminal; call it in the test, because pytest replaces the streams."""
    terminal = Terminal()
    monkeypatch.setattr(sys, stream, terminal)
    monkeypatch.setenv("TERM", "dumb")
    return terminal


ROWS = [(1, "[bold]x[/]", None), (10, [1, 2], True)]


def test_elsewhere_a_table_is_aligned_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "the name", "last"], ROWS)

    assert capsys.readouterr().out == (
        "ID  THE-NAME    LAST\n1   [bold]x[/]  -\n10  1,2         yes\n"
    )


def test_on_a_terminal_a_table_has_a_line_and_its_cells_are_not_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = on_terminal(monkeypatch, "stdout")

    print_table(["id", "the name", "last"], ROWS)

    lines = stdout.text.splitlines()
    assert lines[0].split() == ["id", "the", "name", "last"]
    assert set(lines[1].strip()) == {"─"}
    assert lines[2].split() == ["1", "[bold]x[/]", "-"]


def test_on_a_narrow_terminal_headings_take_two_lines_before_a_row_takes_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = on_terminal(monkeypatch, "stdout")
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal is 80 columns wide
    columns, rows = ["id", "broker epoch"], [(1, 123456), (2, 7)]

    for width in ("16", "10", "9"):
        monkeypatch.setenv("COLUMNS", width)
        print_table(columns, rows)

    text = re.sub(r"\x1b\[\d*m", "", stdout.text)
    assert [line.rstrip() for line in text.splitlines()] == [
        *("id  broker epoch", 16 * "─", "1   123456", "2   7"),
        *("    broker", "id  epoch", 10 * "─", "1   123456", "2   7"),
        *("id            1", "broker epoch  123456", "", "id            2", "broker epoch  7"),
    ]


def test_json_is_one_line_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": (1, 2), "a": None})
    assert capsys.readouterr().out == '{"b":[1,2],"a":null}\n'


def test_json_is_indented_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = on_terminal(monkeypatch, "stdout")

    print_json({"a": 1})
    assert stdout.text == '{\n  "a": 1\n}\n'


def test_numbers_agree_with_nouns_and_long_lists_are_cut() -> None:
    assert (counted(1, "broker"), counted(0, "broker")) == ("1 broker", "0 brokers")
    assert listed([1, 2, 3]) == "1, 2, 3"
    assert listed(range(12), 3) == "0, 1, 2 and 9 more"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("orders", "orders"),
        ("my orders", "my orders"),
        ("订单-ü", "订单-ü"),
        ("", '""'),
        ("-", '"-"'),
        ('"', r'"\""'),
        ("a\nb", r'"a\nb"'),
        ("a\tb", r'"a\tb"'),
        ("a\\nb", "a\\nb"),
        ("\x1b[2J", r'"\u001b[2J"'),
        ("a\x85b\u2028c", r'"a\u0085b\u2028c"'),
        ("\N{RIGHT-TO-LEFT OVERRIDE}a", r'"\u202ea"'),
        ("\ud800", r'"\ud800"'),
        (" a", '" a"'),
        ("a ", '"a "'),
        ("a   b", r'"a \u0020 b"'),
        ("a    b", r'"a \u0020 \u0020b"'),
    ],
)
def test_a_name_that_could_be_misread_is_a_json_string(name: str, shown: str) -> None:
    assert quoted(name) == shown
    assert (json.loads(shown) if shown.startswith('"') else shown) == name


def test_no_value_breaks_a_row_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["rack", "hosts"], [("a\nb", ["c\td", "e"])])

    assert capsys.readouterr().out.splitlines()[1:] == [r'"a\nb"  "c\td",e']


@pytest.mark.parametrize("stream", ["a full disk", "a closed pipe"])
def test_a_program_that_cannot_print_that_it_is_ready_serves_and_ends_in_order(stream: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    if stream == "a full disk":
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    program = "from regent.cli.output import announce; announce('ready: x'); announce('y')"
    with os.fdopen(writer) as stdout:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=scaled(30),
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_note_that_cannot_be_written_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        note("nobody can read this")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_name_in_colons_is_no_emoji(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, "stdout")
    print_table(("group",), [("a:key:b",)])
    assert "a:key:b" in terminal.text
