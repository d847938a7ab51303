"""What ``regent doctor`` examines: each check is a function that yields findings."""
