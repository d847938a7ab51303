"""New partitions placed without Spark."""

from __future__ import annotations

from regent.core.errors import ApiError, Errors
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import PlaceTopicsRequest, PlaceTopicsResponse


class LocalPlacer:
    """Implements ``core.admin.admin_requests.TopicPlacer``."""

    def place(self, request: PlaceTopicsRequest, *, use_service: bool) -> PlaceTopicsResponse:
        """Place in this process."""
        del use_service
        return PlaceTopicsResponse(Errors.NONE, "", tuple(place(request)))

    def obstacle(self) -> ApiError | None:
        """Return None: there is no service."""
        return None
