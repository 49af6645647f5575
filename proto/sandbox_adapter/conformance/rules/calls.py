"""Rules on calls."""
