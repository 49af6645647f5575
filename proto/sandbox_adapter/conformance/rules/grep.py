"""Rules on grep."""
