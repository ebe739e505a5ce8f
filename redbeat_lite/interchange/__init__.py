"""Entries in and out: as text, as files, and from other schedulers."""
