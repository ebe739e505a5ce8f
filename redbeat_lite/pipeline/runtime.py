"""What the pipelines of one app need in one process, shared with the once-locks: settings and a connection."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..once.runtime import Runtime
from .store import PipelineStore

if TYPE_CHECKING:
    from celery import Celery

_ATTRIBUTE = "_redbeat_lite_pipelines"


def store_of(app: Celery) -> PipelineStore:
    """The store of an app in this process; a forked child gets one of its own.

    Raises:
        ConfigurationError: the app's settings are wrong, or name no Redis.
    """
    found: tuple[int, PipelineStore] | None = getattr(app, _ATTRIBUTE, None)
    if found is None or found[0] != os.getpid():
        runtime = Runtime.of(app)
        settings = runtime.settings
        found = (os.getpid(), PipelineStore(runtime.store.client, settings.key_prefix, settings.once_lease))
        setattr(app, _ATTRIBUTE, found)
    return found[1]
