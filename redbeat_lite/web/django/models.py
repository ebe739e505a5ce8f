"""Model without a table, which carries the permissions and the line of the admin's menu."""

from __future__ import annotations

from django.db import models

from ..access import RIGHTS


class Schedule(models.Model):  # type: ignore[misc]  # Django ships no types
    """All entries. ``migrate`` makes a permission of each right but ``view``."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = tuple((right, right) for right in RIGHTS if right != "view")
        verbose_name = "schedule"
        verbose_name_plural = "schedule"
