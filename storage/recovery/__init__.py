"""What a crash or a failing disk leaves: loading, damage, stray and suspect logs."""
