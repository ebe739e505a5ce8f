"""``celery -A proj redbeat …``: the command line.

Celery loads its plugins whenever any of its commands starts. So this package imports only the
group, and the group imports the module of a command when that command is called.
"""

from __future__ import annotations

from .group import redbeat

__all__ = ["redbeat"]
