"""Handlers, their options, and the registry."""
