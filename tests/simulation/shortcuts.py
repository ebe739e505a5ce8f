"""Shortcuts through Celery and redis-py, for work whose result nobody here looks at."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import billiard.einfo
import celery._state
import celery.app.utils
import redis.client
import redis.connection
import redis.event
from celery.utils.collections import ConfigurationView

from tests.simulation.client import shorten_client

#: Prefix of the functions of redis-py that count for OpenTelemetry.
_RECORDERS = "record_"

#: Module with the tasks of Celery's own.
_BUILTINS = "celery.app.builtins"

_callbacks = cache(redis.client.get_response_callbacks)


def take_shortcuts(stack: ExitStack) -> None:
    """Leave out work whose result nobody here looks at."""
    _shorten_redis(stack)
    _shorten_celery(stack)


def _shorten_redis(stack: ExitStack) -> None:
    """Leave out metrics, warnings of deprecated arguments, and events that only renew passwords."""
    for module in (redis.client, redis.connection):
        for name in vars(module).copy():
            if name.startswith(_RECORDERS):
                stack.enter_context(patch.object(module, name, _do_nothing))
    stack.enter_context(patch.object(redis.connection, "get_pool_name", _do_nothing))
    stack.enter_context(patch.object(redis.event.EventDispatcher, "dispatch", _do_nothing))
    shorten_client(stack)
    # Each client copies a table of a thousand functions twice. Its names are in upper case already.
    stack.enter_context(patch.object(redis.client, "get_response_callbacks", _callbacks))
    stack.enter_context(patch.object(redis.client.CaseInsensitiveDict, "__init__", dict.update))
    connect: Any = redis.Connection.connect

    def connect_once(self: Any) -> None:
        if not self._sock:
            connect(self)

    stack.enter_context(patch.object(redis.Connection, "connect", connect_once))


def _shorten_celery(stack: ExitStack) -> None:
    """Leave out tasks of Celery's own, texts of tracebacks, and exceptions where a setting is looked up."""
    # Values of Celery's defaults are never changed in place.
    stack.enter_context(patch.object(celery.app.utils, "deepcopy", dict))
    own = {finalizer for finalizer in celery._state._on_app_finalizers if finalizer.__module__ != _BUILTINS}
    stack.enter_context(patch.object(celery._state, "_on_app_finalizers", own))
    tracebacks = SimpleNamespace(format_exception=lambda _kind, exc, _traceback: [repr(exc)])
    stack.enter_context(patch.object(billiard.einfo, "traceback", tracebacks))
    stack.enter_context(patch.object(billiard.einfo, "Traceback", _do_nothing))
    look_up: Any = ConfigurationView.__getitem__
    #: Old and new names by one of them. The apps have no prefix, so all have the same.
    names: dict[str, Any] = {}

    def look_up_quickly(self: Any, key: str) -> Any:
        if key not in names:
            names[key] = self._to_keys(key)
        for settings in self.maps:
            for name in names[key]:
                if name in settings:
                    return settings[name]
        return look_up(self, key)

    stack.enter_context(patch.object(ConfigurationView, "__getitem__", look_up_quickly))


def _do_nothing(*_args: Any, **_options: Any) -> None:
    """Take the place of a function whose result nobody here looks at."""
