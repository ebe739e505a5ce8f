"""``Schedules``: entries added, read, changed and removed from any process."""
