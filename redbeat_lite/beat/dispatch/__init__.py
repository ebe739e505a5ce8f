"""From entries that are due to messages in a queue."""
