"""A program: a ControlServer on argv[1] that answers state argv[2], or never when "silent".

argv[3] and argv[4] are its keys.
"""

from __future__ import annotations

import sys

from regent.core.errors import Errors
from regent.core.protocol.placement import PlacementStatusResponse
from regent.transport.control.key_files import KeyPair
from regent.transport.control.server import ControlServer, IncomingRequest
from tests.support.keys import EVERYBODY_OPERATES


def main(bind: str, state: str, public: str, secret: str) -> None:
    kept: list[IncomingRequest] = []

    def dispatch(request: IncomingRequest) -> None:
        if state == "silent":
            kept.append(request)
            print("asked", flush=True)  # noqa: T201 - what the test waits for
        else:
            request.reply(PlacementStatusResponse(Errors.NONE, state))

    keys = KeyPair(public, secret)
    server = ControlServer(keys, EVERYBODY_OPERATES, bind, dispatch, name="status-server")
    server.start()
    print(server.endpoint, flush=True)  # noqa: T201 - what the test waits for
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
