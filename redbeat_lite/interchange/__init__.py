"""Entries in and out: files to plan and apply, backups, moving in from other schedulers."""
