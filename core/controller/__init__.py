"""The controller: mirrors ``kafka.controller`` as one deterministic machine."""
