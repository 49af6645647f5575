"""Rules on bash."""
