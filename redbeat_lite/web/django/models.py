"""Model without a table, to which the permissions belong."""

from __future__ import annotations

from django.db import models

from ..users import RIGHTS


class Schedule(models.Model):  # type: ignore[misc]  # Django ships no types
    """Model that stands for all entries.

    ``migrate`` creates a permission for each right except ``view``.
    """

    class Meta:
        managed = False
        default_permissions = ()
        permissions = tuple((right, right) for right in RIGHTS if right != "view")
        verbose_name = "schedule"
