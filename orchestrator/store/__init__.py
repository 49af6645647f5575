"""The log of conversations behind one interface."""
