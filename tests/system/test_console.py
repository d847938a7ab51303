"""The console in a real browser: a failover is watched while brokers are killed.

Chromium and its driver are Debian's packages `chromium` and `chromium-driver`. Without them these
tests are skipped; in continuous integration they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from confluent_kafka import Producer
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from regent.client.moves import Move
from regent.client.plan_directory import write_plan
from regent.cluster.console_child import address_with
from regent.config.threads import NamedThread
from regent.console.operator_actions import CHANGES_FILE
from regent.console.pages import MENU
from regent.core.model import TopicPartition
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled

pytestmark = [pytest.mark.system, pytest.mark.slow]

PHONE, DESK = 390, 1400
PAGES = (
    *MENU,
    *("topic?name=payments", "partition?topic=payments&partition=0"),
    *("records?topic=payments&partition=0", "ask/create-topic", "ask/reset-offsets"),
)
OPTIONS = ("--no-placement-service", "--console", "--console-write")


class Window:
    """A window of a headless Chromium that has opened the console."""

    def __init__(self, address: str, chromium: str, driver: str) -> None:
        options = Options()
        options.binary_location = chromium
        # Root has no sandbox, and containers have a small /dev/shm.
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_page_load_timeout(scaled(20))
        self.base = address.partition("/?")[0]
        self.driver.get(address)
        self.await_text("All is well")

    def open(self, page: str, width: int = DESK) -> None:
        """Open a page in a window of this width."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(f"{self.base}/{page}")

    def click(self, selector: str) -> None:
        """Click on the first element; a part may be replaced between two calls of the driver."""
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, where the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    @property
    def text(self) -> str:
        """The text that is shown; none while one page follows another."""
        return str(self.driver.execute_script("return document.body?.innerText ?? ''"))

    def await_text(self, wanted: str) -> None:
        """Wait until the page shows a text, without loading it again."""
        eventually(lambda: wanted in self.text, f"{wanted!r} is shown", scaled(20))

    def errors(self) -> list[str]:
        """Return what the browser has complained of."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in log]

    def is_wider_than_its_window(self) -> bool:
        """Whether one must scroll sideways."""
        width = "document.documentElement.scrollWidth > window.innerWidth"
        return bool(self.driver.execute_script(f"return {width}"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    """Three brokers and a topic, with a console that may change them."""
    with RegentCluster(tmp_path_factory.mktemp("cluster"), *OPTIONS) as cluster:
        cluster.create_topic("payments", 3)
        cluster.await_isr("payments", {0, 1, 2})
        yield cluster


@pytest.fixture(scope="module")
def window(cluster: RegentCluster) -> Iterator[Window]:
    """A browser that has opened the address that the cluster printed."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        message = "Chromium is missing: apt-get install chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    token = (cluster.data_dir / "console.token").read_text()
    window = Window(address_with(token, cluster.description["console_port"]), chromium, driver)
    yield window
    window.driver.quit()


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_every_page_fits_its_window_and_the_browser_complains_of_nothing(
    window: Window, width: int
) -> None:
    for page in PAGES:
        window.open(page, width)
        assert window.driver.find_element(By.TAG_NAME, "h1").text
        assert not window.is_wider_than_its_window(), page
        assert window.errors() == [], page


HOSTILE = """<!doctype html><title>begun</title>
<iframe src="{base}/ask/delete-topic?target=payments"></iframe>
<iframe name="answer"></iframe>
<form method="post" action="{base}/do/move-controller" target="answer"><input name="target"></form>
<script>
window.got = window.framed = "";
document.querySelector("form").submit();
fetch("{base}/", {{credentials: "include"}}).then(() => "read", () => "refused").then((how) => {{
  window.got = how;
  const fields = new URLSearchParams({{target: "payments", again: "payments"}});
  const sent = {{method: "POST", mode: "no-cors", credentials: "include", body: fields}};
  fetch("{base}/do/delete-topic", sent).finally(() => {{ document.title = "done"; }});
}});
</script>"""


@contextmanager
def another_site(page: str) -> Iterator[int]:
    """Serve a page at another port: cookies call that the same site, the console does not."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = NamedThread(server.serve_forever, "another-site")
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(scaled(10))


def test_a_hostile_page_in_the_same_browser_reads_and_changes_nothing(
    cluster: RegentCluster, window: Window
) -> None:
    changes = cluster.data_dir / CHANGES_FILE
    before = changes.read_text() if changes.exists() else ""
    controller = cluster.await_controller()
    with another_site(HOSTILE.format(base=window.base)) as port:
        window.driver.get(f"http://127.0.0.1:{port}/")
        eventually(lambda: window.driver.title == "done", "the page is done", scaled(20))
        assert window.driver.execute_script("return window.got") == "refused"
        frames = window.driver.find_elements(By.TAG_NAME, "iframe")
        window.driver.switch_to.frame(frames[0])
        assert "Delete" not in window.text, "clickjacking"
        window.driver.switch_to.default_content()
    window.errors()
    assert cluster.await_controller() == controller
    assert (changes.read_text() if changes.exists() else "") == before
    window.open("topics")
    window.await_text("payments")


def test_a_report_is_shown_and_what_it_would_run_is_not(
    cluster: RegentCluster, window: Window
) -> None:
    folder = cluster.data_dir / "reports"
    folder.mkdir(exist_ok=True)
    script = "<script>parent.document.title = document.title = 'owned'</script>"
    stolen = f"<img src='{window.base}/static/icon.svg'>"
    (folder / "evil.html").write_text(f"<h2 id='shown'>A report</h2>{script}{stolen}")
    window.open("reports?name=evil.html")
    window.driver.switch_to.frame(window.driver.find_element(By.TAG_NAME, "iframe"))
    assert window.driver.find_element(By.ID, "shown").text == "A report"
    image = "return document.querySelector('img').naturalWidth"
    assert window.driver.execute_script(image) == 0
    window.driver.switch_to.default_content()
    assert "owned" not in window.driver.title
    window.errors()


def test_a_page_is_left_by_the_keyboard_alone(window: Window) -> None:
    window.open("")
    for _ in range(3):  # past the link to the content and the first page
        window.driver.switch_to.active_element.send_keys(Keys.TAB)
    window.driver.switch_to.active_element.send_keys(Keys.ENTER)
    window.await_text("Colour: the leader")


def test_a_partition_is_found_and_opened_by_the_keyboard_alone(
    cluster: RegentCluster, window: Window
) -> None:
    window.open("partitions")
    window.await_text("Colour: the leader")
    stops = "return document.querySelectorAll('#grid [tabindex=\"0\"]').length"
    others = "return document.querySelectorAll('#grid a:not([tabindex])').length"
    assert window.driver.execute_script(stops) == 1
    assert window.driver.execute_script(others) == 0
    last_link = "document.querySelector('nav a:last-of-type').focus()"
    window.driver.execute_script(last_link)
    window.press(Keys.TAB)
    assert window.driver.switch_to.active_element.tag_name == "a", "the first topic"
    names = [row.text for row in window.driver.find_elements(By.CSS_SELECTOR, "#grid a")]
    for _ in range(names.index("payments")):
        window.press(Keys.ARROW_DOWN)
    window.press(Keys.END, Keys.ARROW_LEFT)
    label = str(window.driver.switch_to.active_element.get_attribute("aria-label"))
    leader = cluster.leader_of("payments", 1)
    assert label == f"payments partition 1: led by broker {leader}"
    assert window.driver.execute_script(stops) == 1
    window.press(Keys.ENTER)
    window.await_text("payments-1")
    assert window.errors() == []


def test_a_plan_is_executed_slowly_watched_and_rolled_back(
    cluster: RegentCluster, window: Window
) -> None:
    first, second, _ = cluster.brokers
    cluster.create_topic_on("large", [(first,)])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(40):
        producer.produce("large", os.urandom(500_000))
    assert producer.flush(scaled(20)) == 0
    plan = cluster.data_dir / "plans" / "to-another"
    plan.mkdir(parents=True)
    move = Move(TopicPartition("large", 0), (first,), (second,), 20_000_000)
    write_plan(plan, [move], {})
    window.open("moves")
    window.await_text("1 to move")
    window.open("ask/execute-plan?target=to-another")
    window.click("input[name='throttle']")
    window.driver.find_element(By.NAME, "throttle").send_keys("100000")
    window.click("button")
    window.await_text(f"broker {second} catches up: 1 partition, ")
    window.await_text("MB left, ")
    window.open("ask/roll-back-plan?target=to-another")
    window.click("button")
    window.await_text("rolled back")
    window.await_text("No partition is being reassigned")
    assert cluster.partition_states("large")[0].leader_and_isr.isr == (first,)
    assert window.errors() == []


def test_a_failover_is_watched_while_the_controller_is_killed(
    cluster: RegentCluster, window: Window
) -> None:
    window.open("")
    window.await_text("All is well")
    controller = cluster.await_controller()
    cluster.kill(controller)
    window.await_text(f"controller {controller} died, broker ")
    window.await_text("until every live broker knew it")
    window.await_text(f"Broker {controller} not registered")
    assert window.driver.find_elements(By.CSS_SELECTOR, "rect.gap")
    window.click(".bars a")
    for step in ("session closed, /controller deleted", "first LeaderAndIsr answered"):
        window.await_text(step)
    window.open("")
    # Started again from the page: the question, the answer, and the broker is back.
    window.click("a[href^='/ask/start']")
    window.await_text(f"Start broker {controller} again?")
    window.click("button")
    window.await_text("All is well")
    window.open("journal?text=serves+as+process")
    window.await_text(f"start {controller}: broker {controller} serves as process")
    window.await_text("at the console")
    assert window.errors() == []


def test_a_cell_of_the_grid_changes_its_colour_with_the_leader(
    cluster: RegentCluster, window: Window
) -> None:
    window.open("partitions")
    before = cluster.leader_of("payments")
    cell = "#grid-payments .cells i:first-child"
    assert f"l{before}" in str(
        window.driver.find_element(By.CSS_SELECTOR, cell).get_attribute("class")
    )
    cluster.kill(before)

    def classes() -> str:
        found = window.driver.execute_script(f"return document.querySelector('{cell}').className")
        return str(found)

    eventually(
        lambda: f"l{before}" not in classes() and " s" in classes(), "it changes", scaled(20)
    )
    cluster.restart(before)


@pytest.mark.timeout(300)
def test_every_page_shows_what_there_is_while_a_broker_dies_and_comes_back(
    cluster: RegentCluster, window: Window
) -> None:
    """Each page is opened before the death, and still open when the broker is back."""
    output = cluster.data_dir / "console.out"
    window.errors()
    for number, page in enumerate(PAGES):
        window.open(page, (DESK, PHONE)[number % 2])
        cluster.kill(number % 3)
        window.driver.refresh()
        assert window.driver.find_element(By.TAG_NAME, "h1").text, page
        assert not window.is_wider_than_its_window(), page
        cluster.restart(number % 3)
        assert window.driver.find_element(By.TAG_NAME, "h1").text, page
        assert window.errors() == [], page
    assert "Traceback" not in output.read_text()
    window.open("")
    window.await_text("All is well")
