"""``why``: why an entry did not run, or that it did, from what is recorded; what is not recorded is not guessed."""
