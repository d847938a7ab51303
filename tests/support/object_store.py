"""A real S3 server on loopback, and what Spark needs to reach it as ``s3a://``.

The server is S3Proxy, one jar of Maven Central. It keeps all in memory.
"""

from __future__ import annotations

import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.java import find_java
from regent.testing.waits import eventually, scaled
from tests.support.free_ports import free_ports
from tests.support.maven_jars import MavenJars

SERVER: Final = MavenJars(
    "s3proxy-2.9.0",
    """
    <dependency org="org.gaul" name="s3proxy" rev="2.9.0" transitive="false">
      <artifact name="s3proxy" type="jar" m:classifier="jar-with-dependencies"/>
    </dependency>
    """,
    "24d81fe0d54f0fca9350a56a82ed9ddb10dc152a9cd8e64e7436c76420c53cd8",
)
# hadoop-aws asks for all of the AWS SDK, 686 MB; these modules of it, 15 MB, are enough. What is
# excluded comes with PySpark.
CLIENT: Final = MavenJars(
    "hadoop-aws-3.5.0",
    """
    <dependency org="org.apache.hadoop" name="hadoop-aws" rev="3.5.0" transitive="false"/>
    <dependency org="software.amazon.s3.analyticsaccelerator" name="analyticsaccelerator-s3"
                rev="1.3.1" transitive="false"/>
    <dependency org="software.amazon.awssdk" name="s3-transfer-manager" rev="2.35.4"/>
    <exclude org="io.netty"/>
    <exclude org="org.slf4j"/>
    <exclude org="commons-codec"/>
    <exclude org="commons-logging"/>
    <exclude org="org.apache.httpcomponents"/>
    """,
    "526f506c63bb64f12282ff8ba12960ea4c4351a15813fccb4fd633d1b0d9f2e5",
)
_JVM_OPTIONS: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_S: Final = 60.0
_END_S: Final = 20.0
_BUCKET: Final = "bucket"


class ObjectStore:
    """An S3 server with one bucket, whose address is ``address``.

    Raises JavaNotFoundError, JarsUnavailableError.
    """

    address: Final = f"s3a://{_BUCKET}"

    def __init__(self, directory: Path) -> None:
        (jar,) = SERVER.fetched()
        self._client = CLIENT.fetched()
        self._endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
        properties = directory / "s3proxy.properties"
        properties.write_text(_PROPERTIES.format(endpoint=self._endpoint))
        with ExitStack() as undo:
            log = undo.enter_context((directory / "s3proxy.log").open("ab"))
            java: list[str | Path] = [find_java().executable, *_JVM_OPTIONS, "-jar", jar]
            process = subprocess.Popen(
                ending_with_this_process([*java, "--properties", properties]),
                stdout=log,
                stderr=log,
                cwd=directory,
            )
            undo.callback(process.wait, _END_S)
            undo.callback(process.kill)
            eventually(self._has_bucket, "the S3 server answers", _START_S)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    @property
    def conf(self) -> dict[str, str]:
        """The settings of Spark."""
        return {
            "spark.jars": ",".join(map(str, self._client)),
            "spark.hadoop.fs.s3a.endpoint": self._endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "anybody",
            "spark.hadoop.fs.s3a.secret.key": "anything",
        }

    def _has_bucket(self) -> bool:
        self._request("PUT", "")
        return True

    def put(self, name: str, content: bytes) -> None:
        """Store an object of the bucket."""
        self._request("PUT", f"/{name}", content)

    def get(self, name: str) -> bytes:
        """Return an object of the bucket; raises ``HTTPError`` if there is none."""
        return self._request("GET", f"/{name}")

    def _request(self, method: str, path: str, content: bytes | None = None) -> bytes:
        address = f"{self._endpoint}/{_BUCKET}{path}"
        request = urllib.request.Request(address, content, method=method)
        with urllib.request.urlopen(request, timeout=scaled(10)) as answer:
            body: bytes = answer.read()
        return body


_PROPERTIES: Final = """\
s3proxy.endpoint={endpoint}
s3proxy.authorization=none
s3proxy.ignore-unknown-headers=true
jclouds.provider=transient
jclouds.identity=anybody
jclouds.credential=anything
"""
