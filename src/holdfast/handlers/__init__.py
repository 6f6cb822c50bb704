"""What runs jobs: handlers, their options, and which there are."""
