"""Rules on sessions."""
