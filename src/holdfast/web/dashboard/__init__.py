"""The dashboard: rendered on the server, without external resources, and usable without JavaScript."""
