"""Kafka's Java clients in a JVM of their own, driven from Python.

Nothing is compiled: py4j, which comes with PySpark, calls constructors and methods by their names.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any, Final, Self
from unittest.mock import patch

from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.errors.exceptions import captured

from regent.config.java import find_java
from regent.testing.waits import next_line, scaled
from tests.genuine_clients.librdkafka import dotted
from tests.support.maven_jars import MavenJars, spark_jar, spark_jars

VERSION: Final = "3.9.1"
KAFKA_CLIENTS: Final = MavenJars(
    f"kafka-clients-{VERSION}",
    f'<dependency org="org.apache.kafka" name="kafka-clients" rev="{VERSION}" transitive="false"/>',
    "cc5e642def34a535aa756839b9b2e1fedc941ad8bd2b4cee18919c9c718cc6b7",
)
_JVM_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_S: Final = 60.0
END_S: Final = 20.0
_TEXT: Final = "org.apache.kafka.common.serialization.String"


class JavaClients:
    """A JVM with kafka-clients; ``jvm`` has its packages, as attributes.

    Raises ``JavaNotFoundError``, and ``JarsUnavailableError`` if the jar cannot be fetched.
    """

    def __init__(self) -> None:
        codecs = spark_jars("lz4-java", "snappy-java", "zstd-jni")
        jackson = spark_jars("jackson-annotations", "jackson-core", "jackson-databind")  # OAuth
        others = [*codecs, *jackson, spark_jar("py4j"), spark_jar("slf4j-api")]
        classpath = [*KAFKA_CLIENTS.fetched(), *others]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the JVM
        self._process = subprocess.Popen(
            [
                *(str(find_java().executable), *_JVM_OPTIONS, "-cp", ":".join(map(str, classpath))),
                f"-Djava.io.tmpdir={tempfile.gettempdir()}",
                *("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
        )
        port, token = (next_line(self._process, "the JVM listens", START_S) for _ in range(2))
        parameters = GatewayParameters(
            port=int(port), auth_token=token.decode().strip(), auto_convert=True, eager_load=True
        )
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self._spark_converts = captured.convert_exception
        self._conversion = patch.object(captured, "convert_exception", self._converted)
        self._conversion.start()
        self.jvm: Any = self._gateway.jvm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._conversion.stop()
        self._gateway.close()
        try:
            self._process.communicate(timeout=scaled(END_S))  # the end of its input ends it
        finally:
            self._process.kill()
        self._log.close()

    def _converted(self, exception: Any) -> captured.CapturedException:
        """Leave our exceptions as they are: a Spark session of this process converts all of py4j.

        It would ask the JVM of Spark about them.
        """
        if exception._gateway_client is self._gateway._gateway_client:
            return captured.UnknownException("of another JVM", "")
        return self._spark_converts(exception)

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
