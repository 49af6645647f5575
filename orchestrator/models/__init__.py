"""Models: what the loop asks of one, and the servers that it can ask."""
