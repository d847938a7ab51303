"""``topics delete``."""

from __future__ import annotations

import pytest

from regent.cli.topic_options import TopicError
from regent.cli.topics_losses import Loss
from regent.core.errors import Errors, RegentError
from regent.core.model import ReplicaAssignment
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.fake_zookeeper import Call, Moment

ON_BOTH = {0: ReplicaAssignment((0, 1))}
MARKER = "/admin/delete_topics/t"
DELETE = ("topics", "delete", "t")


@pytest.fixture
def two(cluster: FakeCluster) -> FakeCluster:
    """Two brokers, and a topic on both."""
    cluster.with_brokers(2)
    cluster.put_topic("t", ON_BOTH)
    return cluster


def after_looks(cluster: FakeCluster, looks: int, *steps: tuple[str, ...]) -> None:
    """Remove the paths of a step after the command has read the marks this number of times."""
    seen = [0]
    pending = list(steps)

    def hook(call: Call) -> None:
        if call.method == "children" and call.moment is Moment.BEFORE:
            seen[0] += "/admin/delete_topics" in call.paths
            if pending and seen[0] > looks:
                for path in pending.pop(0):
                    cluster.zookeeper.remove(path)

    cluster.hook = hook


def test_a_topic_is_marked(two: FakeCluster) -> None:
    """DEL-15: it stays in the list until it is deleted."""
    result = two.run(*DELETE)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Topic t is marked for deletion.\n"
    assert two.zookeeper.snapshot()[MARKER].data == b""
    assert two.run("topics", "list", "--names").stdout == "t - marked for deletion\n"
    assert "MarkedForDeletion: true" in two.run("topics", "describe", "t").stdout


def test_a_topic_that_is_already_marked_is_reported(two: FakeCluster) -> None:
    two.zookeeper.put(MARKER)

    result = two.run("topics", "delete", "--topic", "t")

    assert (result.exit_code, result.stdout) == (0, "Topic t is already marked for deletion.\n")


def test_many_topics_are_marked_at_once(two: FakeCluster) -> None:
    two.put_topic("u", ON_BOTH)

    assert two.json("topics", "delete", "u", "t", "u") == [
        {"topic": "t", "deleted": False},
        {"topic": "u", "deleted": False},
    ]
    assert two.writes.count(MARKER) == 1


@pytest.mark.parametrize("name", ["nope", "..", "a/b"])
def test_nothing_is_marked_when_one_of_the_topics_is_unknown(two: FakeCluster, name: str) -> None:
    assert failing(two.run("topics", "delete", "t", name)) == f"topic {name} does not exist"
    assert MARKER not in two.writes


def test_if_exists_ignores_unknown_topics(two: FakeCluster) -> None:
    result = two.run("topics", "delete", "nope", "t", "--if-exists")

    assert result.exit_code == 0
    assert result.stdout == "Topic t is marked for deletion.\n"
    assert result.stderr == "topic nope does not exist\n"
    assert two.json("topics", "delete", "nope", "--if-exists") == []


def test_internal_topics_cannot_be_deleted(two: FakeCluster) -> None:
    """DEL-14."""
    two.put_topic("__consumer_offsets", ON_BOTH)

    assert failing(two.run("topics", "delete", "t", "__consumer_offsets")) == (
        "topic __consumer_offsets is internal and cannot be deleted"
    )
    assert MARKER not in two.writes


def test_a_topic_must_be_given(two: FakeCluster) -> None:
    assert two.run("topics", "delete").exit_code == 2


def test_a_topic_whose_znode_is_garbage_can_be_deleted(two: FakeCluster) -> None:
    two.zookeeper.put("/brokers/topics/t", b"garbage")

    assert two.run(*DELETE).stdout == "Topic t is marked for deletion.\n"


# --- waiting --------------------------------------------------------------------------------------


def test_the_command_waits_until_the_mark_is_removed(two: FakeCluster) -> None:
    after_looks(two, 2, ("/brokers/topics/t",), (MARKER,))

    result = two.run(*DELETE, "--wait")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Topic t is deleted.\n"


def test_a_later_topic_with_the_same_name_is_another_one(two: FakeCluster) -> None:
    after_looks(two, 2, ("/brokers/topics/t", MARKER))
    remove = two.hook
    assert remove is not None

    def then_create(call: Call) -> None:
        remove(call)
        snapshot = two.zookeeper.snapshot()
        if MARKER in two.writes and not {MARKER, "/brokers/topics/t"} & snapshot.keys():
            two.put_topic("t", ON_BOTH)

    two.hook = then_create

    assert two.json(*DELETE, "--wait") == [{"topic": "t", "deleted": True}]


def test_a_mark_that_is_removed_without_a_deletion_is_a_refusal(two: FakeCluster) -> None:
    after_looks(two, 2, (MARKER,))

    result = two.run(*DELETE, "--wait")

    assert result.exit_code == 1
    assert result.stderr == (
        "regent: topic t was not deleted: the controller refused (delete.topic.enable)\n"
    )


def test_a_server_that_has_not_seen_the_mark_yet_does_not_make_it_a_refusal(
    two: FakeCluster,
) -> None:
    two.zookeeper.connect_to = lambda: two.zookeeper.add_follower(lag=100)

    result = two.run(*DELETE, "--wait", "--timeout-ms", "0")

    assert result.stdout == "Topic t is marked for deletion.\n"
    assert result.stderr.startswith("regent: topic t still exists after 0 ms: ")


def waiting_for(cluster: FakeCluster) -> str:
    """Return the reason why the topic still exists."""
    result = cluster.run(*DELETE, "--wait", "--timeout-ms", "0")
    assert result.exit_code == 1
    assert result.stdout == "Topic t is marked for deletion.\n"
    prefix = "regent: topic t still exists after 0 ms: "
    assert result.stderr.startswith(prefix)
    cluster.zookeeper.remove(MARKER)
    return result.stderr.removeprefix(prefix).rstrip()


def test_after_the_timeout_the_reason_for_the_wait_is_printed(two: FakeCluster) -> None:
    def controller(
        *, to_be_deleted: tuple[str, ...] = (), ineligible: tuple[str, ...] = ()
    ) -> None:
        answer = DescribeControllerResponse(Errors.NONE, 1, 0, to_be_deleted, ineligible)
        two.answers[DescribeControllerRequest] = lambda _: answer

    assert waiting_for(two) == "the controller has not begun"
    controller(to_be_deleted=("t",))
    assert waiting_for(two) == "its replicas are being deleted"
    controller(to_be_deleted=("t",), ineligible=("t",))
    assert waiting_for(two) == ("a replica could not be deleted; the log of its broker says why")
    two.answers[DescribeControllerRequest] = lambda _: Errors.UNKNOWN_SERVER_ERROR
    assert waiting_for(two) == "the controller does not answer"
    two.put_topic("t", {0: ReplicaAssignment((0, 1), removing_replicas=(1,))})
    assert waiting_for(two) == "partitions of it are being reassigned"
    two.unregister(1)
    assert waiting_for(two) == "broker 1 is down; replicas there cannot be deleted"
    two.zookeeper.put("/brokers/topics/t", b"garbage")
    assert "not JSON" in waiting_for(two)


# --- nothing is lost by a slip --------------------------------------------------------------------


def test_a_protected_topic_is_refused_until_it_is_unprotected(two: FakeCluster) -> None:
    protected = two.run("topics", "protect", "t")
    assert protected.stdout == "Topic t is protected: it cannot be deleted.\n"
    assert failing(two.run(*DELETE)) == (
        "topic t is protected: set its regent.deletion.protection to false first"
        " (`regent topics unprotect t`)"
    )
    assert MARKER not in two.writes
    assert two.run("topics", "unprotect", "t").exit_code == 0
    assert two.run(*DELETE).stdout == "Topic t is marked for deletion.\n"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal, and a topic with records."""
    loss = Loss("t", 1, 7, 512, ["billing"], protected=False)
    monkeypatch.setattr("regent.cli.topics_delete.losses_of", lambda *_: [loss])
    monkeypatch.setattr("regent.cli.topics_delete.is_terminal", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_the_command_shows_what_would_be_lost_and_asks(two: FakeCluster) -> None:
    refused = two.run(*DELETE, stdin=b"n\n")
    assert refused.exit_code != 0
    assert "billing" in refused.stdout
    assert MARKER not in two.writes
    accepted = two.run(*DELETE, stdin=b"y\n")
    assert (accepted.exit_code, MARKER in two.writes) == (0, True)


@pytest.mark.usefixtures("terminal")
def test_it_also_asks_when_it_cannot_find_out_what_would_be_lost(
    two: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> list[Loss]:
        raise RegentError("a package is not installed")

    monkeypatch.setattr("regent.cli.topics_delete.losses_of", fails)
    refused = two.run(*DELETE, stdin=b"n\n")
    assert "what the topics have is not known: a package is not installed" in refused.stderr
    assert MARKER not in two.writes
    assert two.run(*DELETE, stdin=b"y\n").exit_code == 0
    assert MARKER in two.writes


@pytest.mark.usefixtures("terminal")
def test_it_does_not_ask_about_topics_that_need_not_exist(
    two: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> list[Loss]:
        raise TopicError("topic t does not exist")

    monkeypatch.setattr("regent.cli.topics_delete.losses_of", fails)
    assert two.run(*DELETE, stdin=b"").stderr == "regent: topic t does not exist\n"
    assert two.run(*DELETE, "--if-exists", stdin=b"").exit_code == 0


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("option", [("--yes",), ("-o", "json")])
def test_a_command_that_says_yes_does_not_ask(two: FakeCluster, option: tuple[str, ...]) -> None:
    assert two.run(*DELETE, *option, stdin=b"").exit_code == 0
    assert MARKER in two.writes


@pytest.mark.usefixtures("terminal")
def test_a_dry_run_deletes_nothing(two: FakeCluster) -> None:
    (row,) = two.json(*DELETE, "--dry-run")
    assert (row["records"], row["bytes"], row["groups"]) == (7, 512, ["billing"])
    assert MARKER not in two.writes
