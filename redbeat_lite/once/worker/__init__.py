"""The worker's main process: what it does for the locks of its children."""
