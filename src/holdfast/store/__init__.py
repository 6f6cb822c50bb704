"""Everything that touches a database, and nothing else: one protocol, one engine beside the other."""
