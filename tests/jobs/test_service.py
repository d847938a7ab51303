"""The placement service as a process: starting, warm, killed, and without leftovers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from regent.config.command_line import COMMAND
from regent.core.errors import Errors
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import (
    PlacementBroker,
    PlacementSpec,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.jobs.service import MAX_PARTITIONS, MAX_WAITING
from regent.jobs.session import DIRECTORY_PREFIX
from regent.testing.waits import eventually, next_line, scaled
from regent.transport.control.key_files import KeysDirectory
from regent.transport.control.remote_ref import RemoteActorRef
from regent.transport.control.sockets import new_context

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("java")]

TIMEOUT_S = scaled(110.0)
SERVICE = ("placement-service", "--work-dir")
# The service ignores these, and is the same on every machine.
OF_THE_USER = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS")


class RunningService:
    """The service as a process; this process holds its death pipe."""

    def __init__(
        self, work_directory: Path, environ: dict[str, str] | None = None, *options: str
    ) -> None:
        reader, self._death_pipe = os.pipe()
        self.work_directory = work_directory
        self.errors = work_directory.with_name(f"{work_directory.name}-stderr")
        keys = KeysDirectory(work_directory.with_name(f"{work_directory.name}-keys"))
        operator = keys.make_operator()
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(*COMMAND, *SERVICE, work_directory, "--keys-dir", keys.path),
                    *("--death-pipe-fd", str(reader), *options),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                pass_fds=[reader],
                env=os.environ | dict.fromkeys(OF_THE_USER, "-nonsense") | (environ or {}),
                cwd=Path(__file__).parents[2],
            )
        os.close(reader)
        line = next_line(self.process, "the service listens", TIMEOUT_S)
        self.endpoint = line.removeprefix("ready:").strip()
        assert self.endpoint, "it does not listen"
        self._context = new_context(operator)
        self.actor = self.connect()

    def connect(self) -> RemoteActorRef:
        return RemoteActorRef(self._context, self.endpoint, client_id="test")

    def status(self) -> PlacementStatusResponse:
        response = self.actor.ask(PlacementStatusRequest(), timeout=scaled(1.0))
        assert isinstance(response, PlacementStatusResponse)
        return response

    def place(self, request: PlaceTopicsRequest) -> PlaceTopicsResponse:
        response = self.actor.ask(request, timeout=TIMEOUT_S)
        assert isinstance(response, PlaceTopicsResponse)
        return response

    def await_state(self, state: str) -> PlacementStatusResponse:
        def reached() -> PlacementStatusResponse | None:
            status = self.status()
            return status if status.state == state else None

        found = eventually(reached, f"the service is {state}", TIMEOUT_S)
        assert found is not None
        return found

    def last_line(self) -> str:
        """Await its end by a failure; return why, as the supervisor reads it."""
        assert self.process.wait(TIMEOUT_S) == 1
        return self.errors.read_text().splitlines()[-1]

    def jvm(self) -> int:
        """Return the process id of its JVM, or of the script that starts it."""

        def child() -> int | None:
            for parent, group, pid in processes():
                if parent == self.process.pid and group == pid:  # it leads its own group
                    return pid
            return None

        pid = eventually(child, "the service has a JVM", TIMEOUT_S)
        assert pid is not None
        return pid

    def close_death_pipe(self) -> None:
        if self._death_pipe >= 0:
            os.close(self._death_pipe)
            self._death_pipe = -1

    def close(self) -> None:
        self.actor.close()
        self._context.destroy(linger=0)
        self.close_death_pipe()
        try:
            self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


KILLED = """
import sys
from pathlib import Path
from regent.jobs.service import serve
from regent.transport.control.key_files import KeysDirectory
from tests.support.killed_threads import kill_thread

folder = Path(sys.argv[1])
KeysDirectory(folder / "keys").make_operator()


def announce(endpoint):
    kill_thread("placement-server", "_take_turn")
    print(endpoint, flush=True)


serve("tcp://127.0.0.1:0", folder / "work", folder / "keys", announce)
"""


def test_the_service_ends_when_the_thread_that_lets_others_in_has_died(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 1
    assert "the thread placement-server has ended" in ended.stderr.splitlines()[-1]


def processes() -> list[tuple[int, int, int]]:
    """Return the parent, the group and the id of every process."""
    command = ["ps", "-A", "-o", "ppid=,pgid=,pid="]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=scaled(20))
    rows = (map(int, line.split()) for line in table.stdout.splitlines())
    return [(parent, group, pid) for parent, group, pid in rows]


@contextmanager
def running_service(
    work_directory: Path, *options: str, **environ: str
) -> Iterator[RunningService]:
    service = RunningService(work_directory, environ, *options)
    try:
        yield service
    finally:
        service.close()


@contextmanager
def starting_service(work_directory: Path) -> Iterator[tuple[RunningService, int]]:
    """Return a service that stays cold because its JVM is stopped, and the JVM's process id."""
    with running_service(work_directory) as service:
        jvm = service.jvm()
        os.killpg(jvm, signal.SIGSTOP)
        yield service, jvm


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def assert_nothing_is_left(service: RunningService, jvm: int) -> None:
    eventually(lambda: is_gone(jvm), "the JVM is gone", TIMEOUT_S)
    assert not list(service.work_directory.glob(f"{DIRECTORY_PREFIX}*"))


def request(
    *topics: PlacementSpec,
    brokers: int = 3,
    strategy: str = "ring",
    start: str = "0",
    index: str = "batch",
) -> PlaceTopicsRequest:
    hosts = tuple(PlacementBroker(b, f"rack-{b % 2}", 0) for b in range(brokers))
    return PlaceTopicsRequest(topics, hosts, strategy, start, index, seed=7)


PAYMENTS = PlacementSpec("payments", 12, 3, 0)


# --- warm -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that warms up during the first tests."""
    del java
    with running_service(tmp_path_factory.mktemp("placement")) as warm:
        yield warm


def ask(service: RunningService, asked: PlaceTopicsRequest) -> PlaceTopicsResponse:
    with service.connect() as client:
        answer = client.ask(asked, timeout=TIMEOUT_S)
    assert isinstance(answer, PlaceTopicsResponse)
    return answer


def test_requests_that_arrive_while_it_starts_are_placed(service: RunningService):
    # The first test of this service: it is cold.
    assert service.status().state == "starting"
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(partial(ask, service), [request(PAYMENTS)] * 2))
    assert [answer.error_code for answer in answers] == [Errors.NONE] * 2


def test_payments_with_twelve_partitions_on_brokers_0_1_and_2(service: RunningService):
    answer = service.place(request(PAYMENTS))
    assert answer.error_code is Errors.NONE
    assert answer.partitions == tuple(
        ("payments", i, tuple((i + j) % 3 for j in range(3))) for i in range(12)
    )


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware"])
@pytest.mark.parametrize("index", ["batch", "per-topic"])
def test_a_batch_is_placed_as_by_the_pure_function(
    service: RunningService, strategy: str, index: str
):
    topics = [PlacementSpec(f"t{number}", 10, 1 + number % 4, 0) for number in range(200)]
    batch = request(*topics, brokers=5, strategy=strategy, index=index, start="random")
    assert service.place(batch).partitions == tuple(place(batch))


def test_it_becomes_ready(service: RunningService):
    assert service.await_state("ready").message == ""


def test_a_request_is_answered_although_its_python_workers_are_killed(service: RunningService):
    jvm, table = service.jvm(), processes()
    workers = [pid for parent, _, pid in table for p, _, q in table if (p, q) == (jvm, parent)]
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    assert service.place(request(PAYMENTS)).error_code is Errors.NONE
    assert service.jvm() == jvm


def test_a_request_in_work_is_answered_when_the_jvm_dies_and_then_the_process_ends(
    service: RunningService,
):
    # The last test of this service: another start would take too long.
    jvm = service.jvm()
    os.kill(jvm, signal.SIGSTOP)  # so that it dies during the request
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, service, request(PAYMENTS))
        service.status()
        os.kill(jvm, signal.SIGKILL)
        refused = answer.result(TIMEOUT_S)
    assert refused.error_code is Errors.BROKER_NOT_AVAILABLE
    assert service.last_line() == "regent: Spark ended (SIGKILL)"


# --- cold -----------------------------------------------------------------------------------------


def test_while_spark_starts_everything_else_is_answered_at_once(tmp_path: Path):
    with starting_service(tmp_path) as (service, _):
        assert service.status().state == "starting"
        refused = service.place(request(PAYMENTS, brokers=2))
        assert refused.error_code is Errors.INVALID_REPLICATION_FACTOR
        assert "larger than the 2 available brokers" in refused.message
        too_many = service.place(request(PlacementSpec("t", MAX_PARTITIONS + 1, 1, 0)))
        assert too_many.error_code is Errors.INVALID_PARTITIONS


def test_the_number_of_waiting_requests_is_limited(tmp_path: Path):
    with starting_service(tmp_path) as (service, _):
        with ExitStack() as clients:
            for _ in range(MAX_WAITING):
                client = clients.enter_context(service.connect())
                client.tell(request(PAYMENTS))
                client.ask(
                    PlacementStatusRequest(), timeout=scaled(1.0)
                )  # now the other one has arrived
            refused = service.place(request(PAYMENTS))
        assert refused.error_code is Errors.BROKER_NOT_AVAILABLE
        assert f"{MAX_WAITING} requests wait already" in refused.message
        assert service.status().state == "starting"


def test_those_who_wait_are_answered_when_spark_does_not_start(tmp_path: Path):
    with starting_service(tmp_path) as (service, jvm), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, service, request(PAYMENTS)) for _ in range(2)]
        service.status()
        os.killpg(jvm, signal.SIGKILL)
        codes = {answer.result(TIMEOUT_S).error_code for answer in waiting}
        assert codes == {Errors.BROKER_NOT_AVAILABLE}
        assert service.last_line() == "regent: Spark did not start (SIGKILL)"
        assert_nothing_is_left(service, jvm)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (None, "cannot be run: correct JAVA_HOME or unset it"),
        (11, "which is Java 11: set it to version 17 or later"),
        (17, "Could not reserve enough space for 524288KB object heap"),
    ],
    ids=["no Java", "too old", "no memory"],
)
def test_a_start_without_a_usable_java_ends_with_one_line(
    tmp_path: Path, version: int | None, why: str
):
    home = tmp_path / "java"
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    if version is not None:
        executable.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = -XshowSettings:properties ] && echo "  java.home = {home}\n'
            f'  java.specification.version = {version}" >&2 && exit\n'
            f'echo "Error occurred during initialization of VM\n{why}" >&2; exit 1\n'
        )
        executable.chmod(0o755)
    with running_service(tmp_path / "work", JAVA_HOME=str(home)) as service:
        assert why in service.last_line()


def test_leftovers_of_a_killed_predecessor_are_removed(tmp_path: Path):
    left_over = tmp_path / f"{DIRECTORY_PREFIX}old" / "blocks"
    left_over.mkdir(parents=True)
    with starting_service(tmp_path) as (service, _):
        assert service.status().error_code is Errors.NONE
        assert not left_over.parent.exists()


# --- the end --------------------------------------------------------------------------------------


def test_sigterm_ends_it_and_even_a_stopped_jvm(tmp_path: Path):
    with starting_service(tmp_path) as (service, jvm):
        service.process.terminate()
        assert service.process.wait(TIMEOUT_S) == 0
        assert_nothing_is_left(service, jvm)


@pytest.mark.nightly
def test_it_ends_when_it_is_idle(tmp_path: Path):
    with running_service(tmp_path, "--idle-ms", "1") as service:
        jvm = service.jvm()
        assert service.process.wait(TIMEOUT_S) == 0
        assert_nothing_is_left(service, jvm)


def test_its_jvm_does_not_survive_it_when_it_is_killed(tmp_path: Path):
    with running_service(tmp_path) as service:
        jvm = service.jvm()
        service.process.kill()
        service.process.wait(TIMEOUT_S)
        eventually(lambda: is_gone(jvm), "the JVM is gone", TIMEOUT_S)


def test_it_ends_with_its_parent(tmp_path: Path):
    with starting_service(tmp_path) as (service, jvm):
        service.close_death_pipe()
        assert service.process.wait(TIMEOUT_S) == 0
        assert_nothing_is_left(service, jvm)
