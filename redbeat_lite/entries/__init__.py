"""Entries: their fields, their state, and the text and JSON forms of both.

Nothing here asks a server or a clock.
"""
