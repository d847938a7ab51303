"""``brokers``: list, configure, shut down and start brokers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import click

from regent.cli.brokers_config import config
from regent.cli.lazy_group import HelpfulGroup
from regent.cli.local_brokers import pid, start
from regent.cli.output import Output, examples, note, output_option, print_json, print_table
from regent.cli.waiting import Waiting
from regent.cli.watching import complete_brokers
from regent.client.broker_answers import failed_log_dirs_of
from regent.client.cluster_connection import Cluster, as_named, bootstrap_option, pass_cluster
from regent.client.live_brokers import not_registered, software_of
from regent.client.obstacles import shutdown_obstacles
from regent.client.overview import BrokerOverview, read_overview
from regent.client.wording import counted
from regent.config.addresses import bracketed
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId, BrokerRegistration, TopicPartition
from regent.core.protocol.broker import ShutdownBrokerRequest, ShutdownBrokerResponse
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.core.quantities import bytes_text
from regent.zk.stores.admin_store import ZkAdminStore, control_endpoint

_POLL_S = 0.1
_SOFTWARE_LIMIT_S = 2.0  # without an answer the list says kafka, without the release
_COLUMNS = (
    *("id", "host", "port", "control port", "replication port"),
    *("rack", "broker epoch", "is controller", "software"),
)


_WIDE_COLUMNS = (
    *("id", "host", "rack", "is controller", "software", "leads", "replicas"),
    *("log bytes", "free bytes", "answer p50", "answer p99", "fetch p50", "fetch p99"),
    *("fetch age", "isr shrinks", "catching up"),
)


class BrokerError(RegentError):
    """A broker is not in the state that the command needs."""


@click.group(cls=HelpfulGroup)
def brokers() -> None:
    """List, configure, shut down and start brokers."""


brokers.add_command(config)
brokers.add_command(start)
brokers.add_command(pid)


def broker_json(registration: BrokerRegistration, controller_id: BrokerId) -> dict[str, object]:
    """Return the JSON object of a broker, for ``-o json``."""
    info = registration.info
    endpoint = info.plaintext_endpoint or next(iter(info.endpoints), None)
    return {
        "id": info.broker_id,
        "broker_epoch": registration.broker_epoch,
        "host": None if endpoint is None else endpoint.host,
        "port": None if endpoint is None else endpoint.port,
        "control_endpoint": info.control_endpoint,
        "replication_endpoint": info.replication_endpoint,
        "rack": info.rack,
        "is_controller": info.broker_id == controller_id,
        "software": info.software,
        "no_replicas": info.no_replicas,
        "node_host": info.node_host,
    }


def _cells(row: Mapping[str, object]) -> list[object]:
    """Return a row of the table; endpoints on the broker's own host show the port only."""
    own = f"tcp://{bracketed(str(row['host']))}:"
    ports = [
        endpoint and str(endpoint).removeprefix(own).removeprefix("tcp://")
        for endpoint in (row["control_endpoint"], row["replication_endpoint"])
    ]
    software = f"{row['software']}{', no replicas' if row['no_replicas'] else ''}"
    failed = row.get("failed_log_dirs")
    if isinstance(failed, list) and failed:
        software += f", failed: {' '.join(failed)}"
    last = (row["rack"], row["broker_epoch"], row["is_controller"], software, row["node_host"])
    return [row["id"], row["host"], row["port"], *ports, *last]


def _print_with_hosts(columns: Sequence[str], rows: Sequence[list[object]]) -> None:
    """Print rows whose last cell is the machine; that column only if a broker names one."""
    if any(row[-1] is not None for row in rows):
        print_table((*columns, "node host"), rows)
    else:
        print_table(columns, [row[:-1] for row in rows])


def _wide_cells(row: BrokerOverview, controller_id: BrokerId) -> list[object]:
    broker, pace, left = broker_json(row.registration, controller_id), row.pace.facts(), None
    if row.catching_up is not None:
        left = row.catching_up.short()
    sizes = [None if size is None else bytes_text(size) for size in (row.log_bytes, row.free_bytes)]
    names = ("id", "host", "rack", "is_controller", "software")
    held = (row.leads, row.replicas)
    last = (left, broker["node_host"])
    return [*(broker[name] for name in names), *held, *sizes, *pace.values(), *last]


@brokers.command("list")
@output_option
@bootstrap_option
@pass_cluster
def list_brokers(cluster: Cluster, /, output: str) -> None:
    """List the brokers that are registered now; "regent" without a release is an earlier one.

    With -o wide, json and yaml: what each leads and holds, the bytes of its logs and what is free
    on the fullest of its disks; how long the controller waits for its answers, and its leaders for
    its next fetch, in the last minute in milliseconds; the age of its last fetch, if it should have
    asked again;
    how often its leaders took it out of an ISR since they started; what it has to fetch until it is
    in sync, and how long that takes.
    """
    cluster = as_named(cluster)
    if output == Output.WIDE:
        with cluster.admin() as admin:
            controller = admin.read_controller()
            overview = read_overview(admin)
        leader = -1 if controller is None else controller.broker_id
        wide = [_wide_cells(row, leader) for row in overview.brokers.values()]
        _print_with_hosts(_WIDE_COLUMNS, wide)
        return
    with cluster.admin() as admin:
        registrations = admin.read_brokers()
        controller = admin.read_controller()
        live = {b: r for b, r in registrations.items() if isinstance(r, BrokerRegistration)}
        software = _software(admin, live)
    controller_id = -1 if controller is None else controller.broker_id
    failed = failed_log_dirs_of([registration.info for registration in live.values()])
    rows = []
    for registration in registrations.values():
        if isinstance(registration, BadDataError):
            note(f"regent: {registration}")
        else:
            row = broker_json(registration, controller_id)
            row["software"] = software[registration.info.broker_id]
            if registration.info.is_of_kafka:
                row["failed_log_dirs"] = failed[registration.info.broker_id]
            rows.append(row)
    if output == Output.JSON:
        with cluster.admin() as admin:
            shown_of = read_overview(admin).brokers
        for row in rows:
            shown = shown_of.get(int(str(row["id"])))  # None: it has gone
            row |= {} if shown is None else shown.facts()
        print_json(rows)
    elif rows:
        _print_with_hosts(_COLUMNS, [_cells(row) for row in rows])
    else:
        note("no broker is registered")


def _software(
    admin: ZkAdminStore, live: Mapping[BrokerId, BrokerRegistration]
) -> Mapping[BrokerId, str]:
    """Ask the controller for the releases of Kafka's brokers, if there are any."""
    if not any(registration.info.is_of_kafka for registration in live.values()):
        return software_of(live, None)
    from regent.cli.remote_actors import controller_of

    deadline = time.monotonic() + _SOFTWARE_LIMIT_S
    answer = None
    with suppress(RegentError), controller_of(admin) as controller:
        request = DescribeControllerRequest()
        answer = controller.ask(request, DescribeControllerResponse, deadline=deadline)
    return software_of(live, answer)


@brokers.command(epilog=examples("brokers shutdown 2"))
@click.argument(
    "broker_id", metavar="ID", type=click.IntRange(min=0), shell_complete=complete_brokers
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(min=1),
    default=60_000,
    show_default=True,
    help="Time to wait until the broker has ended.",
)
@output_option
@pass_cluster
def shutdown(cluster: Cluster, /, broker_id: BrokerId, timeout_ms: int, output: str) -> None:
    """Shut one broker down in a controlled way: first move its leaderships to other brokers.

    Prints the partitions that no other broker could take over.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    with cluster.admin() as admin:
        registered = admin.read_brokers()
        registration = registered.get(broker_id)
        if registration is None:
            raise BrokerError(not_registered(broker_id, registered))
        if isinstance(registration, BadDataError):
            raise registration
        if registration.info.is_of_kafka:
            raise BrokerError(
                f"broker {broker_id} is one of Kafka, which no request shuts down: send SIGTERM to"
                " its process, then it hands its leaderships over"
            )
        with Waiting() as waiting:
            waiting.say(f"broker {broker_id} hands its leaderships to other brokers")
            remaining = await_shutdown(cluster, admin, registration, deadline, waiting)
    if output == Output.JSON:
        partitions = [{"topic": p.topic, "partition": p.partition} for p in sorted(remaining)]
        print_json({"broker_id": broker_id, "remaining_partitions": partitions})
        return
    for partition in sorted(remaining):
        click.echo(f"{partition} could not be moved")
    moved = f", {counted(len(remaining), 'partition')} not moved" if remaining else ""
    click.echo(f"Broker {broker_id} has shut down{moved}.")


def await_shutdown(
    cluster: Cluster,
    admin: ZkAdminStore,
    registration: BrokerRegistration,
    deadline: float,
    waiting: Waiting | None = None,
) -> Sequence[TopicPartition]:
    """Shut a broker down and wait for its end; return the partitions that could not be moved.

    Raises ``BrokerError``, at ``deadline`` (monotonic seconds) if it is still registered.
    """
    broker_id = registration.info.broker_id
    process = _process(cluster, broker_id)
    timeout_s = max(deadline - time.monotonic(), 0.0)
    response = _ask_to_shut_down(admin, registration, timeout_s=timeout_s)
    if waiting is not None:
        waiting.say(f"broker {broker_id} closes its logs")
    _await_departure(admin, registration, deadline)
    _await_end(process, deadline)
    return () if response is None else response.remaining_partitions


def _process(cluster: Cluster, broker_id: BrokerId) -> int | None:
    """Return the process id of a broker of a local cluster, None if it is unknown."""
    file = cluster.file
    broker = file.brokers.get(broker_id) if file else None
    return None if broker is None or broker.ended else broker.pid


def _await_end(process: int | None, deadline: float) -> None:
    """Wait until a process has ended: until then the broker cannot be started again."""
    while process is not None and time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except OSError:
            return
        time.sleep(_POLL_S)


def _ask_to_shut_down(
    admin: ZkAdminStore, registration: BrokerRegistration, *, timeout_s: float
) -> ShutdownBrokerResponse | None:
    """Return the partitions that the broker still leads; None when it ended without an answer."""
    from regent.cli.remote_actors import actor_at
    from regent.transport.control.client import PeerDisconnectedError, RequestError
    from regent.transport.control.remote_ref import ask

    broker_id = registration.info.broker_id
    endpoint = control_endpoint(broker_id, registration)
    try:
        with actor_at(endpoint) as actor:
            request = ShutdownBrokerRequest()
            response = ask(actor, request, ShutdownBrokerResponse, timeout_s=timeout_s)
    except PeerDisconnectedError:
        note(f"broker {broker_id} ended before it reported which partitions it still leads")
        return None
    except RequestError as error:
        reasons = "".join(f"; {reason}" for reason in shutdown_obstacles(admin, broker_id))
        message = f"broker {broker_id} did not answer the request: {error}{reasons}"
        raise BrokerError(message) from None
    if response.error_code is not Errors.NONE:
        note(f"broker {broker_id} stops without a controlled shutdown: {response.error_code.name}")
    return response


def _await_departure(
    admin: ZkAdminStore, registration: BrokerRegistration, deadline: float
) -> None:
    """Wait until this process of a broker is no longer registered, also in no other session."""
    broker_id = registration.info.broker_id
    while True:
        current = admin.read_broker(broker_id)
        if current is None:
            return
        if isinstance(current, BrokerRegistration) and not current.is_same_process(registration):
            return
        if time.monotonic() >= deadline:
            raise BrokerError(f"broker {broker_id} is still registered; it may still be stopping")
        time.sleep(_POLL_S)
