"""The group coordinator, with the classic protocol. Mirrors ``kafka.coordinator.group``."""
