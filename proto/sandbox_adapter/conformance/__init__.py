"""The conformance kit: proves that an adapter keeps the contract. See README.md."""
