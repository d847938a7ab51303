"""Plans of moves in a folder: what the page of moves shows and does of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from regent.client.cluster_connection import Cluster, ClusterLocation
from regent.console.browser_gate import FORM_TOKEN, BrowserGate
from regent.console.plan_operations import PlanStandings, find_plans
from regent.console.web_server import Console
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.testing.waits import eventually, scaled
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.plan_controller import BEFORE, TARGET, MovingController, write_plan

BASE = "http://127.0.0.1:8080"


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[MovingController]:
    """A controller that moves partitions at once; ``t`` has three."""
    monkeypatch.setattr("regent.client.flight._FIRST_PAUSE_S", 0.001)
    with closing(FakeCluster()) as cluster:
        cluster.with_brokers(4)
        controller = MovingController(cluster)
        controller.assign(dict.fromkeys(range(3), ReplicaAssignment(BEFORE)))
        yield controller


@pytest.fixture
def cluster(controller: MovingController) -> Cluster:
    """The same, as commands find it."""
    return Cluster(lambda: ClusterLocation(ADDRESS, None), controller.cluster.open)


@pytest.fixture
def browser(cluster: Cluster, tmp_path: Path) -> Iterator[TestClient]:
    """A browser that may change the cluster; the folder has the plan ``spread``."""
    write_plan(tmp_path / "spread", 0, 1, 2)
    gate = BrowserGate("token", 8080)
    console = Console(cluster, gate, may_write=True, plans=tmp_path)
    console.collector.start()
    client = TestClient(console.application, base_url=BASE, follow_redirects=False)
    client.get("/", params={"token": "token"})
    client.headers["origin"] = BASE
    client.token = gate.form_token  # type: ignore[attr-defined]
    yield client
    console.stop()


def do(browser: TestClient, operation: str, plan: str = "spread", **fields: str) -> tuple[int, str]:
    token = browser.token  # type: ignore[attr-defined]
    form = {FORM_TOKEN: token, "target": plan, **fields}
    answer = browser.post(f"/do/{operation}", data=form)
    return answer.status_code, answer.text


def test_a_plan_is_executed_and_rolled_back_from_the_page(
    browser: TestClient, controller: MovingController
) -> None:
    page = browser.get("/moves").text
    assert "spread" in page
    assert "3 to move" in page
    assert do(browser, "execute-plan")[0] == 303
    eventually(lambda: controller.replicas() == [TARGET] * 3, "it is executed", scaled(10))
    eventually(lambda: "3 reached" in browser.get("/moves").text, "the page tells it", scaled(10))
    assert do(browser, "roll-back-plan")[0] == 303
    eventually(lambda: controller.replicas() == [BEFORE] * 3, "it is rolled back", scaled(10))
    eventually(lambda: "rolled back" in browser.get("/moves").text, "the page tells it", scaled(10))


def test_a_move_in_flight_is_cancelled_by_the_rollback_of_its_plan(
    browser: TestClient, controller: MovingController
) -> None:
    controller.lasts = {1}
    assert do(browser, "execute-plan", throttle="1000")[0] == 303
    eventually(lambda: controller.replicas()[0] == TARGET, "others are moved", scaled(10))
    assert do(browser, "roll-back-plan")[0] == 303
    eventually(lambda: controller.replicas() == [BEFORE] * 3, "it is rolled back", scaled(10))
    assert controller.turned == [1]


def test_a_plan_is_paused_and_resumed(browser: TestClient, tmp_path: Path) -> None:
    assert do(browser, "pause-plan")[0] == 303
    assert ", paused" in browser.get("/moves").text
    assert (tmp_path / "spread" / "paused").exists()
    assert do(browser, "resume-plan")[0] == 303
    assert ", paused" not in browser.get("/moves").text


def test_what_prevents_an_execution_is_told(
    browser: TestClient, controller: MovingController
) -> None:
    status, text = do(browser, "execute-plan", throttle="fast")
    assert (status, "no number of bytes" in text) == (409, True)
    controller.others = {TopicPartition("other", 7): ReplicaAssignment((2, 9, 8), (2,), (8,))}
    status, text = do(browser, "execute-plan")
    assert (status, "others are moving other-7" in text) == (409, True)
    assert controller.submitted == []


@pytest.mark.parametrize("name", ["../spread", "absent", "linked", ""])
def test_only_plans_of_the_folder_are_executed(
    browser: TestClient, controller: MovingController, tmp_path: Path, name: str
) -> None:
    elsewhere = write_plan(tmp_path / "elsewhere" / "spread", 0)
    (tmp_path / "linked").symlink_to(elsewhere)
    status, text = do(browser, "execute-plan", name, plans=str(tmp_path / "elsewhere"))
    assert (status, "there is no plan" in text) == (409, True)
    assert controller.submitted == []


def test_a_damaged_plan_is_named_and_the_others_are_shown(
    cluster: Cluster, controller: MovingController, tmp_path: Path
) -> None:
    del controller
    write_plan(tmp_path / "spread", 0)
    (write_plan(tmp_path / "torn", 0) / "plan.json").write_text("{")
    rows = {row.name: row for row in PlanStandings().look(cluster, tmp_path)}
    assert rows["spread"].status is not None
    assert rows["torn"].status is None
    assert "plan.json" in rows["torn"].problem
    assert find_plans(None) == find_plans(tmp_path / "absent") == []
