"""What Django's permissions and the menu of its admin hang on; there is no table."""

from __future__ import annotations

from django.db import models

from ..access import RIGHTS


class Schedule(models.Model):  # type: ignore[misc]  # Django ships no types
    """All entries; ``migrate`` makes a permission of each right but to look, which all staff have."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = tuple((right, right) for right in RIGHTS if right != "view")
        verbose_name = verbose_name_plural = "schedule"
