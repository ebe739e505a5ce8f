"""A demonstration with real processes: a server, a worker, two beats, the page, and a schedule that changes."""
