"""Error codes of the Kafka protocol, and the exceptions of ports and state machines.

``Errors``            the outcome in a response: a value, not an exception
``RegentError``       the base of all expected exceptions
├── ControllerMovedError      another broker is the controller: this one must resign
├── SessionExpiredError       the ZooKeeper session this call belonged to is over
├── StateChangeFailedError    one partition or replica could not change state
├── BrokerIdInUseError        another live process is registered with this broker id
├── BrokerNotFoundError       no broker with this id and a control endpoint is registered
│   └── NoControlPortError        it is one of Kafka: it will not have one later either
├── StorageError              a log directory failed
│   ├── ForeignDirectoryError     it is in use, or of another broker or cluster: the disk works
│   └── ShortageError             no file descriptor, or no memory, was free: the disk works
├── DamagedRecordsError       records in the middle of a log are damaged
├── RecordsRefusedError       record batches that cannot be appended
└── BadDataError              a znode, frame or file with invalid content
    └── UnreadableError       a znode that this process may not read
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Errors(IntEnum):
    """Kafka's error codes, as far as they are used here.

    ``Errors(code)`` is UNKNOWN_SERVER_ERROR for a code that is not among them.
    """

    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120

    @classmethod
    def _missing_(cls, value: object) -> Errors:
        return cls.UNKNOWN_SERVER_ERROR


class ApiError(NamedTuple):
    """An error code, and one sentence for people that says what is wrong and what helps.

    Mirrors ``org.apache.kafka.common.requests.ApiError``.
    """

    error_code: Errors
    message: str = ""


class RegentError(Exception):
    """Base of all expected exceptions."""


class ControllerMovedError(RegentError):
    """Another broker was elected: the check of a fenced write failed, or a read shows it."""


class SessionExpiredError(RegentError):
    """The ZooKeeper session has ended, or the server was silent for the session timeout."""


class StateChangeFailedError(RegentError):
    """A partition or replica cannot make a transition; its state is unchanged."""


class BrokerIdInUseError(RegentError):
    """``/brokers/ids/N`` belongs to another session, perhaps of a broker of Kafka."""

    def __init__(self, message: str, *, is_of_kafka: bool) -> None:
        super().__init__(message)
        self.is_of_kafka = is_of_kafka


class BrokerNotFoundError(RegentError):
    """There is no such broker, or it has no control endpoint."""


class NoControlPortError(BrokerNotFoundError):
    """The broker is one of Kafka, which has no control port: do not ask again."""


class StorageError(RegentError):
    """The log directory of a partition failed."""


class ForeignDirectoryError(StorageError):
    """A log directory is in use or of another broker, or ZooKeeper is of another cluster."""


class ShortageError(StorageError):
    """This process has no free file descriptor, or no free memory: a later attempt may succeed."""


class DamagedRecordsError(RegentError):
    """Records in the middle of a log are damaged; the message has the position.

    The rest of the log stays usable, because it may be the last copy.
    """


class RecordsRefusedError(RegentError):
    """Record batches that a log refuses; ``error_code`` is for the response."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class BadDataError(RegentError):
    """Invalid data from outside; the message names the data and the problem."""


class UnreadableError(BadDataError):
    """A znode that this process may not read, mostly by its ACL; no watch fires when that ends."""


class NotToldError(UnreadableError):
    """What brokers, who were asked instead of ZooKeeper, do not tell; the message says why."""
