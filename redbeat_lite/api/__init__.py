"""``Schedules``, with which any process adds, reads, changes and removes entries."""
