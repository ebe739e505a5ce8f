"""The admin, and the page of the schedule."""

from django.contrib import admin
from django.urls import include, path

from redbeat_lite.web.django import urls

from .celery import app

urlpatterns = [
    path("admin/", admin.site.urls),
    path("redbeat/", include(urls(app))),
]
