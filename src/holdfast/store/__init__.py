"""Everything that touches a database, and nothing else: one protocol, one implementation per engine."""
