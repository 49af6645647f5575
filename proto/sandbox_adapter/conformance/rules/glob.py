"""Rules on glob."""
