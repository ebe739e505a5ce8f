"""``make bench``: redbeat_lite measured beside its peers, on one server, in interleaved rounds."""
