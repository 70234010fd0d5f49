"""One behaviour suite on four backends: see `spec/behaviour.md`."""
