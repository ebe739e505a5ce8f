"""What a setting may be: each check names the setting, what was expected and what came."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import urls
from .errors import ConfigurationError, InvalidEntry
from .expect import Expect
from .instants import YEAR

if TYPE_CHECKING:
    from celery import Celery

#: What the names of all settings begin with.
PREFIX = "redbeat_lite_"

#: Most seconds of a lease or a timeout: a day. What is longer is a unit mistaken.
_LONGEST = 86_400


def expectation(value: object) -> Expect | None:
    try:
        found = Expect.of(value)
    except InvalidEntry as exc:
        raise ConfigurationError(f"{PREFIX}{exc}") from None
    ok = found is None or (found is not False and found.succeed_every is None)
    require("expect", ok, "None or a mapping of start_within, finish_within and failures", value)
    return found or None


def check_timezone(app: Celery) -> None:
    """Raise ConfigurationError if the app's ``timezone`` is none."""
    try:
        _ = app.timezone
    except Exception:  # noqa: BLE001 - zoneinfo raises KeyError, ValueError or OSError
        zone = 'the name of a time zone such as "Europe/Berlin"'
        raise ConfigurationError(f"timezone: expected {zone}, got {app.conf.timezone!r}") from None


def mapping(value: Any) -> Mapping[str, Any]:
    # What is given instead may hold a password.
    require("redis_options", isinstance(value, Mapping), "a mapping", type(value).__name__)
    return value  # type: ignore[no-any-return]


def require(name: str, ok: bool, expected: str, value: object) -> None:
    if not ok:
        raise ConfigurationError(f"{PREFIX}{name}: expected {expected}, got {value!r}")


def check_url(value: object) -> None:
    # The value may hold a password, so the message shows its scheme alone.
    if not isinstance(value, str) or "://" not in value:
        raise ConfigurationError(f"{PREFIX}url: expected a URL such as redis://host:6379/0")
    scheme = urls.scheme_of(value)
    if scheme not in urls.SCHEMES:
        raise ConfigurationError(f"{PREFIX}url: expected one of {', '.join(urls.SCHEMES)}, got {scheme!r}")
    try:
        _ = urls.parsed(value) if scheme in urls.SINGLE else urls.several(value)
    except ValueError:
        raise ConfigurationError(
            f"{PREFIX}url: expected {scheme}://user:password@host:port/database, with special characters of the "
            "password in percent form; host, port or database cannot be read"
        ) from None


def check_web_url(name: str, value: object) -> None:
    """``None``, or a URL of http or https. It may hold a secret anywhere, so that none of it is shown."""
    if value is None:
        return
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        ok = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # urllib takes a user and a password before the host for a part of its name.
        ok = ok and parts.username is None
    except ValueError:
        ok = False
    if not ok or not str(value).isprintable() or " " in str(value):
        raise ConfigurationError(f"{PREFIX}{name}: expected a URL such as https://host/path, got one that is none")


def check_notify(value: object) -> None:
    """URLs of services. They hold secrets, so that none of them is shown."""
    ok = isinstance(value, (list, tuple)) and all(isinstance(url, str) and "://" in url for url in value)
    if not ok:
        raise ConfigurationError(f"{PREFIX}notify: expected a list of URLs such as mailto://user:password@host")


def check_options(url: str, options: Any) -> None:
    mapping(options)
    scheme = urls.scheme_of(url)
    if scheme in urls.SENTINEL and not options.get("master_name"):
        raise ConfigurationError(
            f"{PREFIX}redis_options: expected the master_name that the sentinels of {PREFIX}url watch, got none"
        )
    if scheme in urls.CLUSTER and (urls.several(url)[1].get("db") or options.get("db")):
        raise ConfigurationError(f"{PREFIX}url: expected database 0, the only one of a Redis Cluster")


def check_text(name: str, value: object) -> None:
    ok = isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()
    require(name, ok, "1 to 200 printable characters", value)


def check_number(name: str, value: object, least: float) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= _LONGEST
    require(name, ok, f"seconds, at least {least:g} and at most {_LONGEST}", value)


def check_whole(name: str, value: object, least: int, most: int) -> None:
    ok = type(value) is int and least <= value <= most
    require(name, ok, f"a whole number from {least} to {most}", value)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    require(name, value in choices, f"one of {', '.join(choices)}", value)


def is_address(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(ip_address(value))
    except ValueError:
        return False


def is_expires(value: object) -> bool:
    if value is None or value == "interval":
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 100 * YEAR
