"""DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, message


@message
class QuotaEntityPart:
    """The user, the client id or the address of an entity; ``entity_name`` None: the default."""

    entity_type: str
    entity_name: str | None


@message
class DescribeClientQuotasComponent:
    """Selects entities by one of their parts."""

    entity_type: str
    match_type: Int8
    match: str | None


@message
class DescribeClientQuotasRequest:
    """A client asks for quotas; ``strict``: of entities without other parts."""

    components: tuple[DescribeClientQuotasComponent, ...]
    strict: bool


@message
class QuotaValue:
    """One quota."""

    key: str
    value: float


@message
class DescribedQuotas:
    """The quotas of one entity."""

    entity: tuple[QuotaEntityPart, ...]
    values: tuple[QuotaValue, ...]


@message
class DescribeClientQuotasResponse:
    """The quotas that were asked for; ``entries`` None: there is an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
    entries: tuple[DescribedQuotas, ...] | None = None


@message
class QuotaOperation:
    """A quota to set, or to remove."""

    key: str
    value: float
    remove: bool


@message
class AlterClientQuotasEntry:
    """The changes of one entity."""

    entity: tuple[QuotaEntityPart, ...]
    ops: tuple[QuotaOperation, ...]


@message
class AlterClientQuotasRequest:
    """A client changes quotas; ``validate_only``: only check whether that is possible."""

    entries: tuple[AlterClientQuotasEntry, ...]
    validate_only: bool


@message
class AlteredQuotas:
    """The outcome for one entity."""

    error_code: Int16
    error_message: str | None
    entity: tuple[QuotaEntityPart, ...]


@message
class AlterClientQuotasResponse:
    """The outcome for each entity."""

    throttle_time_ms: Int32 = 0
    entries: tuple[AlteredQuotas, ...]
