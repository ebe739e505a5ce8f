"""What every room may use: clocks, threads, times, texts, errors. Nothing here knows an entry or a
schedule.
"""
