"""Dispatch: from due entries to messages in a queue."""
