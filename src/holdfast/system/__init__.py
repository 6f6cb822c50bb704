"""What we need of the operating system: threads beside event loops, processes that end with their parent."""
