"""The transaction coordinator as a deterministic machine."""
