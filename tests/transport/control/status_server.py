"""A program: a ControlServer on argv[1] that answers state argv[2], or never when "silent"."""

from __future__ import annotations

import sys

from regent.core.errors import Errors
from regent.core.protocol.placement import PlacementStatusResponse
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.control.sockets import new_context


def main(bind: str, state: str) -> None:
    kept: list[IncomingRequest] = []

    def dispatch(request: IncomingRequest) -> None:
        if state == "silent":
            kept.append(request)
            print("asked", flush=True)  # noqa: T201 - what the test waits for
        else:
            request.reply(PlacementStatusResponse(Errors.NONE, state))

    server = ControlServer(new_context(), bind, dispatch, name="status-server")
    server.start()
    print(server.endpoint, flush=True)  # noqa: T201 - what the test waits for
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
