"""Access to Redis: connections, keys, scripts, and the stored schedule."""
