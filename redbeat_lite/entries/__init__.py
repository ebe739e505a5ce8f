"""Entries: their fields, their state, their runs and changes, and the stored forms of all of these.

Nothing here asks a server or the wall clock.
"""
