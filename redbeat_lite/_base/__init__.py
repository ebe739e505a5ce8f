"""Clocks, threads, times, texts and errors, which every other package may import.

Nothing here imports entries or schedules.
"""
