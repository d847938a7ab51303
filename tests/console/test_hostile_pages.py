"""Pages of other sites, and names and contents that others have chosen, against every form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest
from starlette.testclient import TestClient

from regent.client.cluster_connection import Cluster, ClusterLocation
from regent.client.lag_rates import LagPaces
from regent.cluster.console_child import TOKEN
from regent.console import web_server
from regent.console.browser_gate import FORM_TOKEN, BrowserGate
from regent.console.design_replay import PARTITIONS, REPLAYS
from regent.console.inquiries import GroupRow, LagRow
from regent.console.operator_actions import OPERATIONS
from regent.console.pages import PAGES, PageLook, render
from regent.console.reports import FRAMED_HEADERS
from regent.console.web_server import Console
from regent.core.model import TopicPartition
from tests.support.fake_cluster import ADDRESS, FakeCluster, write_cluster_file

SECRET = "the-token"
PORT = 8080
BASE = f"http://127.0.0.1:{PORT}"
EVIL = "'\"><img src=x onerror=alert(1)><script>alert(2)<"
"""No slash: it is also the name of a topic, which is the name of a znode."""

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that were performed, instead of performing them."""
    performed: list[str] = []

    def perform(_: Cluster, name: str, fields: Mapping[str, str]) -> str:
        del fields
        performed.append(name)
        return "done"

    monkeypatch.setattr(web_server, "perform", perform)
    return performed


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """A console that may change a cluster in which others have chosen all names."""
    with closing(FakeCluster()) as fake:
        fake.with_brokers(3)
        fake.put_topic("payments", {0: (0, 1, 2)})
        fake.put_topic(EVIL, {0: (0, 1, 2)})
        write_cluster_file(tmp_path, zookeeper=ADDRESS)
        (tmp_path / "broker-0").mkdir()
        line = {
            "ts_ms": 1,
            "broker_id": 0,
            "controller_epoch": 1,
            "event_id": 1,
            "elected": 1,
            "event": EVIL,
            "cause": EVIL,
            "changes": [EVIL],
            "partitions": [{"topic": "payments", "partition": 0, "reason": EVIL}],
        }
        (tmp_path / "broker-0" / "events.jsonl").write_bytes(orjson.dumps(line) + b"\n")
        (tmp_path / "reports").mkdir()
        name = EVIL.replace("/", "")
        (tmp_path / "reports" / f"{name}.html").write_text(EVIL)
        (tmp_path / "reports" / f"{name}.json").write_text(EVIL)
        cluster = Cluster(lambda: ClusterLocation(ADDRESS, tmp_path), fake.open)
        console = Console(cluster, BrowserGate(SECRET, PORT), may_write=True)
        console.collector.start()
        yield console
        console.stop()


@pytest.fixture
def browser(console: Console) -> TestClient:
    """A browser that has opened the printed address."""
    client = TestClient(console.application, base_url=BASE, follow_redirects=False)
    assert client.get("/", params={TOKEN: SECRET}).status_code == 200
    return client


class _Elements(HTMLParser):
    """What a browser would run or load, that is not the console's."""

    def __init__(self) -> None:
        super().__init__()
        self.harmful: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            is_address = name in ("src", "href", "action", "formaction", "xlink:href")
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.harmful.append(f"{tag} {name}")
            elif is_address and not re.match("/(?!/)|#", value or ""):
                self.harmful.append(f"{tag} {name}={value}")
        if tag == "script" and dict(attrs).get("src") != "/static/console.js":
            self.harmful.append(tag)
        if tag in ("object", "embed", "base") or "http-equiv" in dict(attrs):
            self.harmful.append(tag)


def harmful(html: str) -> list[str]:
    found = _Elements()
    found.feed(html)
    found.close()
    return found.harmful


def test_what_is_harmful_is_recognised() -> None:
    assert harmful(EVIL) == ["img src=x", "img onerror", "script"]
    assert harmful("<a href='javascript:alert(1)'>") == ["a href=javascript:alert(1)"]
    assert harmful("<a href='//evil.example'>") == ["a href=//evil.example"]


# --- requests -------------------------------------------------------------------------------------

ATTACKS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "another site": ({"origin": "http://evil.example"}, {}),
    "another port of this machine": ({"origin": "http://127.0.0.1:9999"}, {}),
    "a sandboxed frame": ({"origin": "null"}, {}),
    "no origin": ({}, {}),
    "a name that leads here": ({"origin": "http://evil.example", "host": "evil.example"}, {}),
    "its own name": ({"origin": f"http://evil.example:{PORT}", "host": f"evil.example:{PORT}"}, {}),
    "no token": ({"origin": BASE}, {FORM_TOKEN: ""}),
    "a guessed token": ({"origin": BASE}, {FORM_TOKEN: SECRET}),
    "text that looks like a form": ({"origin": BASE, "content-type": "text/plain"}, {}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_form_is_taken_from_another_site(
    browser: TestClient, done: list[str], attack: str
) -> None:
    headers, fields = ATTACKS[attack]
    is_plain = "content-type" in headers
    token = "" if is_plain else BrowserGate(SECRET, PORT).form_token
    for name, operation in OPERATIONS.items():
        filled = {each.name: "1" for each in operation.fields}
        form = {FORM_TOKEN: token, "target": "payments", **filled, **fields}
        answer = browser.post(f"/do/{name}", data=form, headers=dict(headers))
        assert answer.status_code in (403, 421), name
    assert done == []


def test_no_form_is_taken_without_the_cookie_and_none_by_an_address(
    console: Console, browser: TestClient, done: list[str]
) -> None:
    stranger = TestClient(console.application, base_url=BASE, follow_redirects=False)
    form = {FORM_TOKEN: BrowserGate(SECRET, PORT).form_token, "target": "payments"}
    for name in OPERATIONS:
        assert stranger.post(f"/do/{name}", data=form, headers={"origin": BASE}).status_code == 403
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            answer = browser.request(method, f"/do/{name}", params=form, headers={"origin": BASE})
            assert answer.status_code == 405, (method, name)
    assert done == []


def test_loading_every_question_and_every_page_writes_nothing(
    console: Console, browser: TestClient, done: list[str]
) -> None:
    before = len(console.collector.view.events)
    for name, operation in OPERATIONS.items():
        filled = {each.name: "1" for each in operation.fields}
        browser.get(f"/ask/{name}", params={"target": "payments", "preview": "yes", **filled})
    for page in PAGES:
        browser.get(f"/{page}")
    assert done == []
    assert len(console.collector.view.events) <= before + 1


# --- names and contents ---------------------------------------------------------------------------


def test_no_question_repeats_what_its_address_says_unescaped(browser: TestClient) -> None:
    for name, operation in OPERATIONS.items():
        fields = {each.name: EVIL for each in operation.fields}
        answer = browser.get(f"/ask/{name}", params={"target": EVIL, **fields})
        assert answer.status_code == 200, name
        assert harmful(answer.text) == [], name
        answer = browser.get(f"/ask/{name}", params={"target": EVIL, "preview": "yes", **fields})
        assert harmful(answer.text) == [], name


@pytest.mark.parametrize("arguments", ["", "evil"])
def test_no_page_runs_what_others_have_named(browser: TestClient, arguments: str) -> None:
    names = ("name", "topic", "text", "broker", "key", "search", "start", "at", "form", "page")
    query = dict.fromkeys(names, EVIL) | {"partition": "0"} if arguments else {}
    for page in PAGES:
        text = browser.get(f"/{page}", params=query).text
        assert harmful(text) == [], page
    shown = browser.get("/partitions").text
    assert "&lt;img src=x onerror" in shown, "the topic is there, as text"


ODD = (
    EVIL,
    "9" * 5_000,
    "9" * 19,
    "99999999999",
    "-1",
    "\0",
    "\N{RIGHT-TO-LEFT OVERRIDE}" + "é" * 300,
    "1\r\nX: y",
)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_what_cannot_be_understood_is_told_and_not_repeated_unescaped(
    browser: TestClient, text: str
) -> None:
    token = BrowserGate(SECRET, PORT).form_token
    for name in OPERATIONS.keys() - {"move-controller", "elect-preferred"}:
        filled = {each.name: text for each in OPERATIONS[name].fields}
        form = {FORM_TOKEN: token, "target": text, **filled}
        answer = browser.post(f"/do/{name}", data=form, headers={"origin": BASE})
        assert answer.status_code in (303, 409, 413), name
        assert harmful(answer.text) == [], name
        assert answer.headers.get("location", "/").startswith("/"), name
        assert not answer.headers.get("location", "/").startswith("//"), name


def test_groups_members_and_transactions_are_escaped() -> None:
    rows = (LagRow(TopicPartition(EVIL, 0), 1, 2, EVIL),)
    group = GroupRow(EVIL, EVIL, 0, (EVIL,), rows)
    groups = [(group, group.lags(LagPaces()))]
    html = render("groups.html", groups=groups, problems=[EVIL], may_write=True)
    html += render("problem.html", problem=EVIL)
    html += render("refused.html", status=409, reason=EVIL)
    assert harmful(html) == []


# --- reports and designs --------------------------------------------------------------------------


def test_a_report_is_framed_without_scripts_and_loads_nothing(browser: TestClient) -> None:
    name = f"{EVIL}.html"
    page = browser.get("/reports", params={"name": name}).text
    assert '<iframe class="report" sandbox title=' in page
    answer = browser.get("/report-file", params={"name": name})
    assert answer.text == EVIL
    assert {key: answer.headers[key] for key in FRAMED_HEADERS} == FRAMED_HEADERS
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none';"), "alone in a window, too"
    assert "allow-" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_report_in_json_is_text(browser: TestClient) -> None:
    page = browser.get("/reports", params={"name": f"{EVIL}.json"}).text
    assert harmful(page) == []
    assert "&lt;img src=x onerror" in page
    assert browser.get("/report-file", params={"name": f"{EVIL}.json"}).status_code == 404


def test_reports_with_half_characters_break_no_page(browser: TestClient, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    (folder / "half.json").write_text('{"half": "\\ud800", "deep": ' + "[" * 900 + "]" * 900 + "}")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.json")).write_text("{}")
    listed = browser.get("/reports")
    assert listed.status_code == 200
    assert "half.json" in listed.text
    page = browser.get("/reports", params={"name": "half.json"})
    assert page.status_code == 200
    assert "\\ud800" in page.text


def test_only_files_of_the_folder_are_reports(browser: TestClient, tmp_path: Path) -> None:
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "reports" / "link.html").symlink_to(tmp_path / "secret.html")
    (tmp_path / "reports" / "folder.html").mkdir()
    absolute = str(tmp_path / "secret.html")
    for name in ("../secret.html", absolute, "link.html", "folder.html", "absent.html", ""):
        assert browser.get("/report-file", params={"name": name}).status_code == 404, name
    listed = browser.get("/reports").text
    assert "link.html" not in listed
    assert "folder.html" not in listed


def test_the_designs_have_the_figures_of_the_study(browser: TestClient) -> None:
    table = (DOCS / "designs.md").read_text().partition("## Measured")[2]
    for what in ("watches_fired", "requests", "watches_at_rest"):
        row = " | ".join(f"{getattr(replay, what):,}" for replay in REPLAYS)
        assert f"| {PARTITIONS:,} | {row} |" in table, what
    times = " | ".join(f"{replay.led_ms:,}, {replay.known_ms:,}" for replay in REPLAYS)
    assert f"| {PARTITIONS:,} | {times} |" in table
    page = browser.get("/designs").text
    assert "895 watches" in page
    assert "2 watches" in page


def test_a_console_without_a_data_directory_says_how_to_name_a_folder(console: Console) -> None:
    view = replace(console.collector.view, data_dir=None)
    look = PageLook(view, console._cluster)
    assert "console --reports FOLDER" in PAGES["reports"].parts(look)["reports"]
