"""Words for people and machines about what happens: log lines now, metrics beside them."""
