"""The table ``[delegation_tokens]``: tokens with which others log in as a user (KIP-48)."""

from __future__ import annotations

from dataclasses import dataclass

from regent.config.tables.ranges import LONG_INTERVAL_MS
from regent.core.controller.services import ControllerSettings
from regent.core.security.delegation_token_manager import DelegationTokenSettings
from regent.core.setting import setting


@dataclass(frozen=True)
class DelegationTokensConfig:
    """The table ``[delegation_tokens]``: tokens with which others log in as a user."""

    delegation_token_secret_key_file: str = setting(
        "",
        "The file with the secret from which the passwords of delegation tokens are computed; the"
        " same secret at all brokers. No other user may read it. Empty: there are no tokens. With"
        " another secret all tokens get other passwords.",
        ours=True,
    )
    delegation_token_max_lifetime_ms: int = setting(
        DelegationTokenSettings.delegation_token_max_lifetime_ms,
        "The longest time that a token lives, however often it is renewed.",
        limits=LONG_INTERVAL_MS,
    )
    delegation_token_expiry_time_ms: int = setting(
        DelegationTokenSettings.delegation_token_expiry_time_ms,
        "How long a token is valid that is not renewed.",
        limits=LONG_INTERVAL_MS,
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        ControllerSettings.delegation_token_expiry_check_interval_ms,
        "How often the controller deletes expired tokens. An expired token does not log in, also"
        " before it is deleted.",
        limits=LONG_INTERVAL_MS,
    )
