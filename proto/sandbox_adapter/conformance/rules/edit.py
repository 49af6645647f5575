"""Rules on edit."""
