"""Whom the console answers: browsers that have its token, and no page of another site.

A browser sends a request to the console also when another site's page asks for it. So: the Host
must be a name of this machine's loopback (a name that another site's DNS server points here is
none); each request needs a cookie that other sites' requests do not carry (SameSite=Strict); a
request that changes something needs the console's own Origin and the token of its forms, too. No
page may be shown inside another site's, and none runs a script that is not the console's.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

FORM_TOKEN: Final = "form_token"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: then browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer."""

_READS: Final = ("GET", "HEAD")


class BrowserRefusal(NamedTuple):
    """Why a request is not answered: the status of HTTP, and a sentence with the remedy."""

    status: int
    reason: str


class BrowserGate:
    """Decides about requests; ``token`` is the secret in the address that is printed."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self.cookie_name = f"regent-console-{port}"  # cookies of all ports are in one jar

    @property
    def cookie(self) -> str:
        """What a browser shows after it has shown the token."""
        return self._derived("cookie")

    @property
    def form_token(self) -> str:
        """What the forms carry: a page of another site cannot read it."""
        return self._derived("form")

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    def refusal(
        self, method: str, headers: Mapping[str, str], cookies: Mapping[str, str]
    ) -> BrowserRefusal | None:
        """Return why a request is refused; None: it has to be answered.

        ``headers`` have names in lower case. The token of a form is checked by ``form_refusal``.
        """
        host = headers.get("host", "")
        if not is_of_this_machine(host):
            return BrowserRefusal(421, f"{host!r} is not a name of this machine: use 127.0.0.1")
        shown = cookies.get(self.cookie_name, "")
        if not hmac.compare_digest(shown.encode(), self.cookie.encode()):
            return BrowserRefusal(
                403, "open the address with the token that the command has printed"
            )
        if method not in _READS and headers.get("origin") != f"http://{host}":
            return BrowserRefusal(403, "a page of another site has sent this request")
        return None

    def form_refusal(self, form: Mapping[str, object]) -> BrowserRefusal | None:
        """Return why the content of a form is refused; None: it is one of ours."""
        shown = str(form.get(FORM_TOKEN, ""))
        if hmac.compare_digest(shown.encode(), self.form_token.encode()):
            return None
        return BrowserRefusal(403, "this form is not one of the console's: load the page again")

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def is_of_this_machine(host: str) -> bool:
    """Whether a Host header names loopback; the port may be that of a tunnel."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        _ = urlsplit(f"//{host}").port
    except ValueError:
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
