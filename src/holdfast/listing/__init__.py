"""Finding jobs: pages of a filter, the same done to many, and why one does not run."""
