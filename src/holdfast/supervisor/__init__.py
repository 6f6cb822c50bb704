"""The supervisor of worker processes: it starts them, replaces those that die, and runs no job itself."""
