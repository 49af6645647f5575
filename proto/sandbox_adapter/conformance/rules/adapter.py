"""Rules on adapter."""
