"""Moving in from other schedulers: read their stores, and carry over entries with their last runs.

Each reader (:mod:`.redbeat`, :mod:`.djangobeat`) yields what it found and what it could not read; :mod:`.carrier`
decides what becomes of it here, and :mod:`.move_in` writes. A reader never writes.
"""
