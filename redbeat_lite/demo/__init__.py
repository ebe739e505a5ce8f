"""A demonstration with real processes: one server, one worker, two beats, and a schedule that changes meanwhile."""
