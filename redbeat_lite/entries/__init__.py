"""What an entry is, how its state follows from it, and the forms it has; no server and no clock."""
