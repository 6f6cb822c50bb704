"""Storing jobs: how they are validated, and who commits."""
