"""For ``include = ["redbeat_lite.worker"]`` in a configuration: workers do what
:func:`redbeat_lite.install` says.
"""

from __future__ import annotations

from typing import Any

from celery import signals

from .once.install import install


def _install(instance: Any = None, **_: Any) -> None:
    install(instance.app)  # while it is imported, another app of the process may be the current one


signals.celeryd_init.connect(_install, weak=False, dispatch_uid="redbeat_lite.worker")
