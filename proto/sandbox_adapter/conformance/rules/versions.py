"""Rules on versions."""
