"""The supervisor of worker processes: starts them, replaces those that die, and runs no jobs itself."""
