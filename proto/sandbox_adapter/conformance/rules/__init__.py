"""The rules that are code, one module for each area."""
