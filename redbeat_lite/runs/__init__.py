"""What became of a run: the rows of each entry and the feed of all ends, which workers append to.

The room knows no entries: a run is named by the name of its entry, its nominal time and its task id, which the headers
of its message tell.
"""
