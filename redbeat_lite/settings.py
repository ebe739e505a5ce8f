"""The ``redbeat_lite_*`` settings, read once from ``app.conf`` and checked.

Each check names the setting, the values that it accepts, and the value that came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from ._base import urls
from ._base.errors import ConfigurationError, InvalidEntry
from ._base.fields import (
    POSITIVE,
    Kind,
    Model,
    checked_kind,
    fields_of,
    length,
    name,
    require,
    whole,
)
from ._base.text import is_short_text, remember_passwords
from ._base.times import YEAR
from .policies import Expect, MisfirePolicy

if TYPE_CHECKING:
    from celery import Celery

#: The first part of the names of all settings.
PREFIX = "redbeat_lite_"

#: Minimum number of times that the leader renews its lease before the lease would expire, so that
#: three renewals in a row may fail.
RENEWALS_PER_LEASE = 4

#: URL of settings that are read without asking a server.
NO_SERVER = "redis://none"

#: Maximum number of runs of an entry that are remembered.
MAX_HISTORY = 1000

#: Longest name of an entry or a task, in characters.
MAX_NAME = 200

#: Maximum number of seconds of a lease or a timeout: a day. A longer one was probably
#: written in another unit.
_LONGEST = 86_400

#: Valid prefixes: text without braces, or with one pair of braces at its end.
_PREFIX = re.compile(r"[^{}]+|[^{}]*\{[^{}]+\}")

#: Settings whose values may contain a secret, so that no text shows them.
_SECRET = ("url", "redis_options", "heartbeat_url", "notify")


def key_root(prefix: str) -> str:
    """Return the beginning of all keys under a prefix: ``{redbeat-lite}`` or ``myapp:{beat}``.

    Redis Cluster chooses the slot of a key by the text in its braces.
    """
    return prefix if prefix.endswith("}") else f"{{{prefix}}}"


def _is_address(value: object) -> bool:
    """Return whether a value is the text of an IP address."""
    # ip_address() raises ValueError if the text is no IP address.
    with suppress(ValueError):
        return isinstance(value, str) and bool(ip_address(value))
    return False


def _is_web_url(url: object) -> bool:
    """Return whether a value is a URL that urllib can request."""
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        is_port_valid = parts.port != 0  # This raises ValueError if the port is no number.
    except ValueError:
        return False
    # urllib would take ``user:password@`` for a part of the host's name.
    has_user = parts.username is not None
    is_http = parts.scheme in ("http", "https")
    return is_http and bool(parts.hostname) and is_port_valid and not has_user


def _check_url(value: Any) -> str:
    """Return the URL of a server.

    Raises:
        ConfigurationError: the value is no such URL. It may contain a password, so the error shows
            only its scheme.
    """
    if not isinstance(value, str) or "://" not in value:
        raise ConfigurationError(f"{PREFIX}url: expected a URL such as redis://host:6379/0")
    scheme = urls.scheme_of(value)
    if scheme not in urls.SCHEMES:
        raise ConfigurationError(
            f"{PREFIX}url: expected one of {', '.join(urls.SCHEMES)}, got {scheme!r}"
        )
    # This is called only for the ValueError that it raises if a URL cannot be read.
    try:
        urls.addresses_and_options(value)
    except ValueError:
        raise ConfigurationError(
            f"{PREFIX}url: expected {scheme}://user:password@host:port/database, with special "
            "characters of the password in percent form; host, port or database cannot be read"
        ) from None
    return value


def _are_urls(value: object) -> bool:
    """Return whether a value is a list of texts that look like URLs."""
    if not isinstance(value, (list, tuple)):
        return False
    return all(isinstance(url, str) and "://" in url for url in value)


def _convert_expectation(value: Any) -> Expect | None:
    """Return the default expectation; refuse ``succeed_every``, which must fit each schedule."""
    expect = Expect.of(value)
    require(not expect or expect.succeed_every is None, value)
    return expect or None


def _convert_life(value: Any) -> Any:
    """Return the life of messages in seconds, or ``"interval"``; raise if it is neither."""
    # Celery's ``expires`` may be an instant, which would be the same for all messages of an entry.
    is_instant = isinstance(value, datetime)
    require(not is_instant, value, "the last instant of an entry is its end_at")
    return value if value == "interval" else _LIFE.convert(value)


def _seconds(least: float) -> Kind:
    """Return the kind of a setting that is a length of time, from ``least`` seconds to a day."""
    expected = f"seconds, at least {least:g} and at most {_LONGEST}"
    return length(least, _LONGEST)._replace(expected=expected)


#: Life of a message in seconds. It is bounded, so that a datetime can hold its end.
_LIFE = length(POSITIVE, 100 * YEAR)

#: Life of a message; "interval" stands for the time to the next run.
EXPIRES = _LIFE._replace(expected=f'"interval", or {_LIFE.expected}', convert=_convert_life)

_URL = Kind("", "a URL of a Redis server", _check_url)
_OPTIONS = checked_kind("", "a mapping", lambda value: isinstance(value, Mapping))
_KEY_PREFIX = checked_kind(
    "",
    "text of 1 to 200 characters without braces, or with one pair at the end, such as "
    '"myapp:{beat}"',
    lambda text: is_short_text(text, 200) and _PREFIX.fullmatch(text) is not None,
)
_EXPECT = Kind("", "a mapping of start_within, finish_within and failures", _convert_expectation)
_ADDRESS = checked_kind(
    "", "the IP address to listen on, such as 127.0.0.1 or 0.0.0.0", _is_address
)
_PATH = checked_kind("", "the path of a file", lambda path: isinstance(path, str) and path != "")
_WEB_URL = checked_kind("", "a URL such as https://host/path", _is_web_url)
_NOTIFY = checked_kind("", "a list of URLs such as mailto://user:password@host", _are_urls)


class Settings(Model, frozen=True):
    """Everything that a user can set. The page about the settings explains each.

    Users may write a length of time in any of its forms; here it is in seconds.

    Raises:
        ConfigurationError: a value is wrong.
    """

    url: Annotated[str, _URL]
    redis_options: Annotated[Mapping[str, Any], _OPTIONS] = {}
    key_prefix: Annotated[str, _KEY_PREFIX] = "redbeat-lite"
    owner: Annotated[str, name(200)] = "celery"
    lease: Annotated[float, _seconds(1)] = 4.0
    batch_size: Annotated[int, whole(1, 5000)] = 500
    expires: Annotated[float | str | None, EXPIRES] = "interval"
    clock_slack: Annotated[float, _seconds(0)] = 5.0
    misfire: MisfirePolicy = "coalesce"
    once_lease: Annotated[float, _seconds(1)] = 60.0
    history: Annotated[int, whole(0, MAX_HISTORY)] = 20
    expect: Annotated[Expect | None, _EXPECT] = None
    publish_timeout: Annotated[float, _seconds(0.1)] = 5.0
    stall_timeout: Annotated[float, _seconds(1)] = 30.0
    dispatch: Literal["auto", "batch", "plain"] = "auto"
    traceparent: bool = False
    metrics_port: Annotated[int | None, whole(1, 65_535)] = None
    metrics_host: Annotated[str, _ADDRESS] = "127.0.0.1"
    heartbeat_file: Annotated[str | None, _PATH] = None
    heartbeat_url: Annotated[str | None, _WEB_URL] = None
    notify: Annotated[Sequence[str], _NOTIFY] = ()

    def __post_init__(self) -> None:
        # Model checks the fields. Its errors name a field, such as "lease", so put the prefix of
        # all settings before it.
        try:
            super().__post_init__()
        except InvalidEntry as exc:
            error = str(exc)
            if exc.field in _SECRET:
                # Such a value may be a secret, so the error shows only its type.
                kind = type(exc.value).__name__
                error = f"{exc.field}: expected {exc.expected}, got a value of type {kind!r}"
            raise ConfigurationError(f"{PREFIX}{error}") from None
        if self.stall_timeout <= self.publish_timeout:
            raise ConfigurationError(
                f"{PREFIX}stall_timeout: expected more than {PREFIX}publish_timeout "
                f"({self.publish_timeout:g} s), or a slow publish counts as a hang, got "
                f"{self.stall_timeout}"
            )
        self._check_servers()

    def _check_servers(self) -> None:
        """Check the settings that a Sentinel or a cluster needs."""
        scheme = urls.scheme_of(self.url)
        if scheme in urls.SENTINEL and not self.redis_options.get("master_name"):
            raise ConfigurationError(
                f"{PREFIX}redis_options: expected the master_name that the sentinels of "
                f"{PREFIX}url watch, got none"
            )
        if scheme in urls.CLUSTER:
            _, url_options = urls.addresses_and_options(self.url)
            if url_options.get("db") or self.redis_options.get("db"):
                raise ConfigurationError(
                    f"{PREFIX}url: expected database 0, the only one of a Redis Cluster"
                )

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in fields_of(Settings) if name not in _SECRET}
        return f"<Settings {shown}>"

    @property
    def slack_ms(self) -> int:
        """Milliseconds that the clocks of beats and workers may differ."""
        return round(1000 * self.clock_slack)

    @classmethod
    def from_app(cls, app: Celery, *, url: str | None = None) -> Settings:
        """Read the settings of a Celery app.

        Django's form works too: with ``config_from_object(..., namespace="CELERY")`` the setting
        ``url`` is ``CELERY_REDBEAT_LITE_URL``, and without a namespace ``REDBEAT_LITE_URL``.

        Parameters:
            url: URL that replaces the setting ``url``, for a caller that asks no server.

        Raises:
            ConfigurationError: a value is wrong, a name is unknown, a setting has two values in two
                spellings, or there is no Redis to use.
        """
        values = _written_settings(app)
        broker_options: dict[str, Any] = {}
        if url is not None:
            values["url"] = url
        elif values.get("url") is None:
            values["url"] = _broker_url(app)
            # The server is the broker's, so it takes the TLS options of the broker, too.
            broker_options |= _broker_tls(app)
        if urls.scheme_of(str(values["url"])) in urls.SENTINEL:
            broker_options |= _broker_sentinel(app)
        own_options = values.get("redis_options", {})
        # The user's own options override those of the broker.
        if isinstance(own_options, Mapping):  # The constructor refuses anything else.
            values["redis_options"] = {**broker_options, **own_options}
        # Errors that are logged or stored do not show these passwords from here on.
        remember_passwords([values.get(name) for name in _SECRET])
        remember_passwords([app.conf.broker_write_url, app.conf.broker_transport_options])
        # The owner of config entries is the app by default, so that two apps can share a schedule.
        if app.main:
            values.setdefault("owner", app.main)
        return cls(**values)


def has_own_url(app: Celery) -> bool:
    """Return whether ``redbeat_lite_url`` is set, which takes precedence over the broker's URL."""
    return "url" in _written_settings(app)


def broker_urls(app: Celery) -> list[str]:
    """Return the URLs of the brokers, of which Celery uses the first one that answers."""
    url = app.conf.broker_write_url or ""
    if isinstance(url, (list, tuple)):
        url = ";".join(map(str, url))
    return str(url).split(";")


def check_timezone(app: Celery) -> None:
    """Raise ConfigurationError if the app's ``timezone`` is no time zone."""
    try:
        _ = app.timezone
    except Exception:  # noqa: BLE001 - zoneinfo raises KeyError, ValueError or OSError.
        expected = 'the name of a time zone such as "Europe/Berlin"'
        raise ConfigurationError(
            f"timezone: expected {expected}, got {app.conf.timezone!r}"
        ) from None


# -- Names of settings ----------------------------------------------------------------------------


def _written_settings(app: Celery) -> dict[str, Any]:
    """Return the values that the user has set, by their names without the prefix.

    The names may be in capitals, and with the namespace of the app or without.

    Raises:
        ConfigurationError: there is no such setting, or its two spellings have different values.
    """
    # Reading the keys loads the configuration, if that is still pending. Only then the app knows
    # its namespace.
    keys = [str(key) for key in app.conf]
    namespace = app.conf.prefix or ""
    # Without a namespace, Celery's own names in capitals begin with "CELERY_", and users may write
    # our names in the same way.
    start = (namespace or "CELERY_").lower()
    values: dict[str, Any] = {}
    written: dict[str, str] = {}  # Name of a setting -> its key, as the user has written it.
    overrides: dict[str, Any] = {}
    for key in keys:
        setting = key.lower().removeprefix(start)
        if not setting.startswith(PREFIX):
            continue
        name = setting.removeprefix(PREFIX)
        _check_name(key, name)
        # With a namespace, ``app.conf[key]`` could be the value of another spelling.
        value = next(source[key] for source in app.conf.maps if key in source)
        if namespace and key == setting:
            # Code that sets an attribute of app.conf writes this key. As for Celery's own settings,
            # its value overrides those that were written with the namespace.
            overrides[name] = value
            continue
        if name in values and values[name] != value:
            raise ConfigurationError(
                f"{written[name]} and {key} are both set, to different values; set only one"
            )
        values[name] = value
        written[name] = key
    return values | overrides


def _check_name(key: str, name: str) -> None:
    """Raise ConfigurationError if there is no setting of this name, with the most similar one.

    Parameters:
        key: the name as the user has written it.
    """
    names = fields_of(Settings)
    if name in names:  # A search for similar names takes a millisecond, and most names are right.
        return
    hint = ""
    near = get_close_matches(name, list(names), n=1, cutoff=0.5)
    if near:
        beginning = key[: len(key) - len(name)]
        similar = near[0].upper() if key.isupper() else near[0]
        hint = f"; did you mean {beginning}{similar}?"
    raise ConfigurationError(f"{key}: there is no such setting{hint}")


# -- Settings of the broker -----------------------------------------------------------------------


def _broker_url(app: Celery) -> str:
    """Return the URL of the broker, if it is a server that can hold the schedule.

    Raises:
        ConfigurationError: the broker is no Redis server.
    """
    servers = broker_urls(app)
    scheme = urls.scheme_of(servers[0]) or "none"
    if scheme in urls.SENTINEL:
        return ";".join(servers)  # All sentinels belong to one server.
    if scheme in urls.SCHEMES:
        # The schedule stays on the first server, even while Celery publishes to another one.
        return servers[0]
    raise ConfigurationError(
        f"redbeat_lite_url: expected the URL of a Redis server, because the broker ({scheme}) "
        "cannot hold the schedule"
    )


def _broker_tls(app: Celery) -> dict[str, Any]:
    """Return the certificates of ``broker_use_ssl`` as options of redis-py's client."""
    tls = app.conf.broker_use_ssl
    return {"ssl": True, **tls} if isinstance(tls, Mapping) else {}


def _broker_sentinel(app: Celery) -> dict[str, Any]:
    """Return the options for Sentinel among the broker's transport options."""
    options = app.conf.broker_transport_options or {}
    return {name: options[name] for name in ("master_name", "sentinel_kwargs") if name in options}
