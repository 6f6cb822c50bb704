"""The benchmarks of the PostgreSQL engine. They share a server of their own, or one that --postgres names."""
