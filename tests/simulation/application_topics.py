"""The topics of groups and of transactions: other clients and admins leave them alone."""

from __future__ import annotations

from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

LEDGER = "ledger"
"""Has the records of transactions."""

TRANSACTION_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, LEDGER})
APPLICATION_TOPICS = TRANSACTION_TOPICS | {GROUP_METADATA_TOPIC}
