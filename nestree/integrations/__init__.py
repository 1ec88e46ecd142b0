"""Integrations with other libraries: spaCy and Ray."""
