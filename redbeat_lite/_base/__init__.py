"""Clocks, threads, times, texts and errors, which every room may use.

Nothing here knows an entry or a schedule.
"""
