"""Rules on files."""
