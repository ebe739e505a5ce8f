"""Module for ``include = ["redbeat_lite.worker"]`` in a configuration.

In every worker of the app, it calls :func:`redbeat_lite.install`.
"""

from __future__ import annotations

from typing import Any

from celery import signals

from .once.install import install


def _install(instance: Any = None, **_: Any) -> None:
    # The worker's app is taken, because another app of the process may be the current one.
    install(instance.app)


signals.celeryd_init.connect(_install, weak=False, dispatch_uid="redbeat_lite.worker")
