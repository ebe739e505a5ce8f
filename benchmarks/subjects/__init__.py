"""What is measured: each in a process of its own, so that none carries another's memory.

``python -m benchmarks.subjects NAME`` reads a :class:`Task` as JSON from stdin and writes ``{name: figure}`` to stdout.
"""
