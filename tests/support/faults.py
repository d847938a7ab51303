"""Faults of a cluster under load; each function ends when the cluster is repaired.

A function that awaits progress requires acknowledgements during the fault.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from regent.config.cluster_location import KEYS_DIR
from regent.config.command_line import COMMAND
from regent.core.model import BrokerId
from regent.testing.waits import eventually, scaled
from regent.transport.control.key_files import KeysDirectory
from tests.support.breakable_cluster import BROKERS, SMALL_DISK, BreakableCluster, flip_a_bit
from tests.support.cluster_security import WRITER
from tests.support.load import Load

Fault: TypeAlias = Callable[[BreakableCluster, Load, random.Random], None]

_FILLER = "filler"
_CHUNK_BYTES = 64 * 1024


def kill_the_leader(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """``kill -9`` of the leader of a partition, then a restart."""
    partition = chance.choice(load.partitions)
    victim = cluster.leader_of(*partition)
    cluster.kill(victim)
    cluster.await_leader(*partition, other_than=victim)
    load.await_progress()
    cluster.revive(victim)


def kill_the_controller(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """``kill -9`` of the controller, then a restart; other faults wait for a controller."""
    victim = cluster.await_controller()
    cluster.kill(victim)
    load.await_progress()
    cluster.revive(victim)


def kill_two_one_after_the_other(
    cluster: BreakableCluster, load: Load, chance: random.Random
) -> None:
    """``kill -9`` of the leader and of its successor: one replica is not enough."""
    partition = chance.choice(load.partitions)
    first = cluster.leader_of(*partition)
    cluster.kill(first)
    second = cluster.await_leader(*partition, other_than=first)
    load.await_progress()
    cluster.kill(second)
    cluster.await_leader(*partition, other_than=second)
    both = [first, second]
    chance.shuffle(both)
    for victim in both:
        cluster.revive(victim)


def pause_the_leader(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """The leader is paused for longer than its session timeout, then continues."""
    partition = chance.choice(load.partitions)
    victim = cluster.leader_of(*partition)
    cluster.pause(victim)
    cluster.await_leader(*partition, other_than=victim)
    load.await_progress()
    cluster.resume(victim)
    eventually(lambda: cluster.broker_epoch(victim) is not None, "it is registered again")


def restart_zookeeper(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """ZooKeeper is stopped for a while: work without elections goes on."""
    cluster.server.stop()
    load.await_progress()
    cluster.server.start()
    eventually(lambda: all(cluster.broker_epoch(broker) for broker in BROKERS), "all registered")


def tear_a_log(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """A broker is killed, and some data that it wrote last are lost or garbage."""
    partition = chance.choice(load.partitions)
    victim = chance.choice(BROKERS)
    cluster.kill(victim)
    load.await_progress()
    log = cluster.log_of(partition, victim)
    tear(max(log.glob("*.log")), chance)
    cluster.revive(victim)


def tear(segment: Path, chance: random.Random) -> None:
    """Cut the end off a file, or write zeros, garbage or half a batch to its end."""
    content = segment.read_bytes()
    cut = content[: len(content) - chance.randint(1, max(1, min(len(content), 2_000)))]
    torn = chance.choice(
        [cut, content + bytes(500), content + chance.randbytes(300), content + content[:40]]
    )
    segment.write_bytes(torn)


def damage_a_log(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """A bit flips on a disk, in the middle of a log: the replica is fetched again."""
    partition = chance.choice(load.partitions)
    victim = chance.choice(BROKERS)
    log = cluster.log_of(partition, victim)
    complete = eventually(lambda: sorted(log.glob("*.log"))[:-1], "a segment is complete")
    flip_a_bit(chance.choice(complete), chance)
    load.await_progress()
    cluster.await_replacement(partition, victim)


def restart_one_after_the_other(
    cluster: BreakableCluster, load: Load, chance: random.Random
) -> None:
    """A rolling restart, as for a new version: clients see no error."""
    topic = load.partitions[0].topic
    for broker in chance.sample(BROKERS, len(BROKERS)):
        cluster.shut_down(broker)
        load.await_progress()
        cluster.revive(broker)
        cluster.await_isr(topic, set(BROKERS))


def kill_all_processes(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """All processes are killed, although the machine is not: no data are lost."""
    cluster.kill(*BROKERS)
    for broker in chance.sample(BROKERS, len(BROKERS)):
        cluster.revive(broker)


def fill_a_disk(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """One directory of a broker is full; the broker goes on with its other directory.

    A small disk must be mounted there. The repair makes room and restarts the broker.
    """
    victim = broker_with_small_disk(cluster)
    disk = cluster.log_directories(victim)[1]
    hit = [p for p in load.partitions if cluster.log_of(p, victim).parent == disk]
    assert hit, "no partition is on the small disk"
    filler = disk / _FILLER

    def is_taken_over() -> bool:
        # Again and again: the broker may delete the files of an earlier topic in the meantime.
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(_CHUNK_BYTES))
        states = cluster.partition_states(hit[0].topic)
        found = [states[partition.partition].leader_and_isr for partition in hit]
        return all(victim not in (state.leader, *state.isr) for state in found)

    eventually(is_taken_over, "others lead what is on the full disk")
    load.await_progress()
    assert cluster.broker_epoch(victim) is not None, (
        "a broker with one full disk of two must not end"
    )
    cluster.kill(victim)
    filler.unlink()
    cluster.revive(victim)


def rotate_a_key(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """A broker gets another key for control requests, and so do commands.

    The broker uses it from its next start, after an orderly end or ``kill -9``.
    """
    victim = chance.choice(BROKERS)
    broker_dir = cluster.data_dir / f"broker-{victim}"
    new = _rotate_keys(cluster, "--broker", str(broker_dir))
    load.await_progress()
    if chance.random() < 0.5:
        cluster.kill(victim)
    else:
        cluster.shut_down(victim)
    load.await_progress()
    cluster.revive(victim)
    keys = KeysDirectory(cluster.data_dir / KEYS_DIR)
    assert keys.allowed()[f"broker-{victim}"] == [new], "only the new key is allowed"
    _rotate_keys(cluster)
    cluster.use_keys(keys.operator())
    cluster.await_ready()


def _rotate_keys(cluster: BreakableCluster, *options: str) -> str:
    """Run ``regent keys rotate``; return the new public key."""
    done = subprocess.run(
        [*COMMAND, "keys", "rotate", *options, "--data-dir", str(cluster.data_dir)],
        capture_output=True,
        text=True,
        timeout=scaled(60.0),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def renew_a_certificate(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """A broker takes another certificate while it serves; then its clients and peers reconnect."""
    victim = chance.choice(BROKERS)
    certificate = cluster.security.renew_certificate(victim)
    cluster.signal(victim, signal.SIGHUP)
    cluster.security.await_certificate(victim, certificate)
    load.await_progress()
    other = chance.choice([broker for broker in BROKERS if broker != victim])
    cluster.kill(other)
    load.await_progress()
    cluster.revive(other)


def change_a_password(cluster: BreakableCluster, load: Load, chance: random.Random) -> None:
    """The user of the producers gets another password, and a broker dies before they know it.

    Connections that are logged in stay; the login of others fails until they have the new password.
    """
    password = cluster.security.change_password(cluster.server.address, WRITER)
    victim = chance.choice(BROKERS)
    cluster.kill(victim)
    cluster.revive(victim)
    load.log_in_producers_with(WRITER, password)


def broker_with_small_disk(cluster: BreakableCluster) -> BrokerId:
    """Return the broker whose second directory is a mounted file system; raises ``LookupError``."""
    for broker in BROKERS:
        if (cluster.data_dir / f"broker-{broker}" / SMALL_DISK).is_mount():
            return broker
    raise LookupError("no broker has a small disk")


FAULTS: tuple[Fault, ...] = (
    kill_the_leader,
    kill_the_controller,
    kill_two_one_after_the_other,
    pause_the_leader,
    restart_zookeeper,
    tear_a_log,
    damage_a_log,
    restart_one_after_the_other,
    kill_all_processes,
)
"""Faults that need only processes and files."""

SECURITY_FAULTS: tuple[Fault, ...] = (rotate_a_key, renew_a_certificate, change_a_password)
"""Faults of a secured cluster: what proves who is who is replaced while it serves."""
