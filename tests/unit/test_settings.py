"""Settings as an app's configuration gives them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery import Celery

from redbeat_lite.settings import Settings


def configured(**conf: Any) -> Celery:
    """An app that is configured as Django's are, and whose configuration nothing has looked at yet."""
    app = Celery("shop", set_as_current=False)
    app.config_from_object(SimpleNamespace(**conf), namespace="CELERY")
    return app


def test_a_namespace_counts_in_a_process_that_did_nothing_else_with_the_app_before() -> None:
    app = configured(
        CELERY_BROKER_URL="redis://broker/1", CELERY_REDBEAT_LITE_KEY_PREFIX="shop", CELERY_REDBEAT_LITE_LEASE=7
    )
    settings = Settings.from_app(app)
    assert (settings.key_prefix, settings.lease, settings.url) == ("shop", 7, "redis://broker/1")
    assert settings.owner == "shop"
