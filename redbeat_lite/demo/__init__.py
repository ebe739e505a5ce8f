"""Demonstration with real processes: a server, a worker, two beats, and the page."""
