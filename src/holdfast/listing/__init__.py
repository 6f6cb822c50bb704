"""Finding jobs: filtered pages, bulk actions, and why a job isn't running."""
