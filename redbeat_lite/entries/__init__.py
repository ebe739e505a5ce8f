"""What an entry is, how its state follows from it, and the forms it has, two of them stored; no
server and no clock.
"""
