"""Rules on write."""
