"""The worker's main process: it renews and releases the locks of its children."""
