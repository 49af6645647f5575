"""Rules on isolation."""
