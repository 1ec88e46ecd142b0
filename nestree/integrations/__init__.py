"""Other libraries: spaCy."""
