"""The limits that settings of several tables have."""

from __future__ import annotations

from regent.core.setting import DAY_MS, INT_MAX, LONG_MAX

NOT_NEGATIVE = (0, INT_MAX)
TIMEOUT_MS = (100, DAY_MS)
INTERVAL_MS = (1, INT_MAX)
LONG_INTERVAL_MS = (1, LONG_MAX)
