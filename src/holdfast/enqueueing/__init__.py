"""Storing jobs: what is checked before, and who commits."""
