"""What we need from the operating system: helper threads, and processes that end with their parent."""
