"""One broker process, and the wiring of its parts."""
