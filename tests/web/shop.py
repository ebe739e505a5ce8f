"""What those who sign in to the example of Django see and do; prints it as JSON. Runs in its directory."""

from __future__ import annotations

import json
import os
from typing import Any

import django
from django.core.management import call_command
from django.test import Client

from tests.web import templates

FORM = {"data": "name=reminder:1&note=the+disk", "content_type": "application/x-www-form-urlencoded"}


def seen(client: Client) -> dict[str, Any]:
    """What somebody sees of the page, where it leads who has not signed in, and what comes of a pause."""
    page = client.get("/redbeat/entries")
    paused = client.post("/redbeat/pause", headers={"sec-fetch-site": "same-origin"}, **FORM)
    return {
        "lead": page.headers.get("Location", ""),
        "page": page.status_code,
        "paused": paused.status_code,
        "reminder": "reminder:1" in page.content.decode(),
    }


if __name__ == "__main__":
    templates.share_as_told()
    os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    django.setup()
    call_command("migrate", verbosity=0)
    call_command("check", fail_level="WARNING")
    from django.contrib.auth.models import Permission, User
    from shop.schedules import remind

    remind(order=1, seconds=3600)
    clients = {"nobody": Client(enforce_csrf_checks=True, SERVER_NAME="localhost")}
    for name, staff in (("customer", False), ("staff", True), ("operator", True)):
        user = User.objects.create_user(name, is_staff=staff)
        if name == "operator":
            user.user_permissions.add(Permission.objects.get(content_type__app_label="redbeat_lite", codename="pause"))
        clients[name] = Client(enforce_csrf_checks=True, SERVER_NAME="localhost")
        clients[name].force_login(user)
    print(json.dumps({name: seen(client) for name, client in clients.items()}))
