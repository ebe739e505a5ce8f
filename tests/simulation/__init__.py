"""The whole system in one process on a virtual clock, and the model of the server that it runs on."""
