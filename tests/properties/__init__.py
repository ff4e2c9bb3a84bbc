"""Identities with a known answer, one row each: `python -m tests.properties` prints the table."""
