"""Kafka's Java clients in a JVM of their own, driven from Python.

Nothing is compiled: py4j calls constructors and methods by their names. The jar of the clients is
fetched once by Ivy. Both py4j and Ivy come with PySpark.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway

from regent.config.java import find_java
from tests.clients.librdkafka import dotted

VERSION: Final = "3.9.1"
FETCH_TIMEOUT_S: Final = 180.0
_SHA256: Final = "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9"
_CACHE: Final = Path(__file__).parents[2] / ".cache"
_JVM_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_TEXT: Final = "org.apache.kafka.common.serialization.String"


class JavaClients:
    """A JVM with kafka-clients; ``jvm`` has its packages, as attributes.

    Raises ``JavaNotFoundError``, and ``OSError`` if the jar cannot be fetched.
    """

    def __init__(self) -> None:
        classpath = [_kafka_clients_jar(), *(_spark_jar(name) for name in ("py4j", "slf4j-api"))]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the JVM
        self._process = subprocess.Popen(
            [
                *(str(find_java().executable), *_JVM_OPTIONS, "-cp", ":".join(map(str, classpath))),
                *("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        port, token = self._process.stdout.readline(), self._process.stdout.readline()
        parameters = GatewayParameters(
            port=int(port), auth_token=token.strip(), auto_convert=True, eager_load=True
        )
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self.jvm: Any = self._gateway.jvm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._gateway.close()
        self._process.communicate()  # the end of its standard input ends it
        self._log.close()

    def consumer(self, bootstrap: str, **config: object) -> Any:
        """Return a ``KafkaConsumer``; in the names of the configuration ``_`` stands for ``.``."""
        settings = {
            "bootstrap.servers": bootstrap,
            "key.deserializer": f"{_TEXT}Deserializer",
            "value.deserializer": f"{_TEXT}Deserializer",
            "enable.auto.commit": False,
            **dotted(config),
        }
        return self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)

    def partition(self, topic: str, partition: int) -> Any:
        """Return a ``TopicPartition``."""
        return self.jvm.org.apache.kafka.common.TopicPartition(topic, partition)

    def poll(self, consumer: Any, timeout_ms: int) -> list[Any]:
        """Return the next ``ConsumerRecord`` objects of a consumer."""
        records = consumer.poll(self.jvm.java.time.Duration.ofMillis(timeout_ms))
        return list(records.iterator())

    def close(self, client: Any) -> None:
        """Close a consumer or a producer without waiting."""
        client.close(self.jvm.java.time.Duration.ZERO)


def _kafka_clients_jar() -> Path:
    jar = _CACHE / f"kafka-clients-{VERSION}.jar"
    if not jar.exists():
        _CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as directory:
            fetched = Path(directory) / jar.name
            _fetch(fetched)
            found = hashlib.sha256(fetched.read_bytes()).hexdigest()
            if found != _SHA256:
                raise OSError(f"{jar.name} has the SHA-256 {found}, not {_SHA256}")
            fetched.rename(jar)
    return jar


def _fetch(jar: Path) -> None:
    """Have Ivy fetch kafka-clients to the path ``jar``."""
    module = ("org.apache.kafka", "kafka-clients", VERSION)
    command = [
        *(str(find_java().executable), "-jar", str(_spark_jar("ivy"))),
        *("-cache", str(jar.parent / "ivy"), "-confs", "default", "-types", "jar"),
        *("-dependency", *module, "-notransitive"),
        *("-retrieve", str(jar.parent / "[artifact]-[revision].[ext]")),
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    if not jar.exists():
        error = OSError(f"Ivy cannot fetch {jar.name} from Maven Central: put it into {_CACHE}")
        error.add_note(ended.stdout + ended.stderr)
        raise error


def _spark_jar(name: str) -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    (jar,) = Path(found.origin).parent.glob(f"jars/{name}-[0-9]*.jar")
    return jar
