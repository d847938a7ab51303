"""Topics that are created, extended and deleted, as the controller sees them."""
