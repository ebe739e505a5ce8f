"""The way to Redis: connections, scripts, keys, and the schedule as it is kept there."""
