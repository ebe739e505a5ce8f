"""Entry in the menu of the admin that leads to the page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.shortcuts import redirect
from django.urls import path

from .models import Schedule


@admin.register(Schedule)
class Menu(admin.ModelAdmin):  # type: ignore[misc]  # Django ships no types
    """Menu entry for all staff, because staff may view the page, and the page checks all rights."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Return the permission that the menu needs to show its entry."""
        return {"view": True}

    def get_urls(self) -> list[Any]:
        """Return one redirect to the page, in place of the admin's pages of the model."""
        lead = self.admin_site.admin_view(lambda request: redirect("redbeat", path=""))
        return [path("", lead, name="redbeat_lite_schedule_changelist")]
