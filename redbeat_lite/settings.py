"""The ``redbeat_lite_*`` settings, read once from ``app.conf`` and checked.

Each check names the setting, the values that it accepts, and the value that came.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ._base import urls
from ._base.errors import ConfigurationError, InvalidEntry
from ._base.text import remember_passwords
from ._base.times import YEAR, seconds_of
from .policies import Expect

if TYPE_CHECKING:
    from celery import Celery

#: The first part of the names of all settings.
PREFIX = "redbeat_lite_"

#: The leader renews its lease so often within the lease, so that three renewals in a row may fail.
RENEWALS_PER_LEASE = 4

#: URL of settings that are read without asking a server.
NO_SERVER = "redis://none"

#: Most runs of an entry that are remembered.
MAX_HISTORY = 1000

#: Longest name of an entry or a task, in characters.
MAX_NAME = 200

#: Most seconds of a lease or a timeout: a day. A longer one has a wrong unit.
_LONGEST = 86_400

#: Valid prefixes: text without braces, or with one pair of braces at its end.
_PREFIX = re.compile(r"[^{}]+|[^{}]*\{[^{}]+\}")

#: Settings that are durations.
_DURATIONS = {"lease", "expires", "clock_slack", "once_lease", "publish_timeout", "stall_timeout"}


def key_root(prefix: str) -> str:
    """Return the beginning of all keys under a prefix: ``{redbeat-lite}`` or ``myapp:{beat}``.

    Redis Cluster chooses the slot of a key by the text in its braces.
    """
    return prefix if prefix.endswith("}") else f"{{{prefix}}}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a user can set. Durations are in seconds here; an app may use every form of a
    duration.

    Parameters:
        url: the Redis server or servers that hold the schedule; the broker's URL if the broker is a
            Redis.
        redis_options: further keyword arguments of the redis-py client; also ``master_name`` and
            ``sentinel_kwargs``.
        key_prefix: beginning of all keys. Schedules under different prefixes are independent. The
            keys have the prefix in braces, unless it ends with braces of its own, such as
            ``"myapp:{beat}"``.
        owner: owner of the entries of ``beat_schedule``; entries of another owner are never
            touched.
        lease: seconds that a silent leader stays leader. 1 to 86,400.
        batch_size: entries per round trip, 1 to 5,000.
        expires: default of an entry's ``expires``: ``None``, seconds, or ``"interval"``.
        clock_slack: seconds that the clocks of beats and workers may differ. A message that expires
            with its interval lives that much longer. 0 to 86,400.
        misfire: default of an entry's ``misfire``: ``"coalesce"``, ``"skip"`` or ``"all"``.
        once_lease: lease of a once-lock. 1 to 86,400.
        history: default of an entry's ``history``, the number of its last runs that are remembered.
            0 to 1,000.
        expect: default of an entry's ``expect``: a mapping of the fields of :class:`Expect`, except
            ``succeed_every``, because that depends on the rule of one entry.
        publish_timeout: seconds after which a publish that hangs is given up. 0.1 to 86,400.
        stall_timeout: seconds without progress after which a leader stops renewing its lease. 1 to
            86,400.
        dispatch: ``"auto"``, ``"batch"`` or ``"plain"``.
        traceparent: whether each message of the beat has the W3C header of this name, with a trace
            of its own.
        metrics_port: port of the beat's metrics for Prometheus, 1 to 65,535.
        metrics_host: IP address of the metrics; ``"0.0.0.0"`` for all addresses of the machine.
        heartbeat_file: a file that the beat touches every second while its loop runs; its directory
            must exist.
        heartbeat_url: a URL of http or https that the leader requests every minute.
        notify: URLs of services, in the form of apprise, that receive incidents.
    """

    # The URL and the options may contain a password, so repr() does not show them.
    url: str = field(repr=False)
    redis_options: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({}), repr=False
    )
    key_prefix: str = "redbeat-lite"
    owner: str = "celery"
    lease: float = 4.0
    batch_size: int = 500
    expires: float | str | None = "interval"
    clock_slack: float = 5.0
    misfire: Literal["coalesce", "skip", "all"] = "coalesce"
    once_lease: float = 60.0
    history: int = 20
    expect: Expect | None = None
    publish_timeout: float = 5.0
    stall_timeout: float = 30.0
    dispatch: str = "auto"
    traceparent: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    heartbeat_file: str | None = None
    # Any part of these two may be a secret.
    heartbeat_url: str | None = field(default=None, repr=False)
    notify: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        _check_url(self.url)
        _check_options(self.url, self.redis_options)
        _check_text("key_prefix", self.key_prefix)
        is_prefix = _PREFIX.fullmatch(self.key_prefix) is not None
        expected = 'text without braces, or with one pair at its end, such as "myapp:{beat}"'
        _require("key_prefix", is_prefix, expected, self.key_prefix)
        _check_text("owner", self.owner)
        _check_number("lease", self.lease, 1.0)
        _check_number("once_lease", self.once_lease, 1.0)
        _check_number("clock_slack", self.clock_slack, 0.0)
        _check_number("publish_timeout", self.publish_timeout, 0.1)
        _check_number("stall_timeout", self.stall_timeout, 1.0)
        is_long_enough = self.stall_timeout > self.publish_timeout
        expected = (
            f"more than {PREFIX}publish_timeout ({self.publish_timeout:g} s), or a slow publish "
            "counts as a hang"
        )
        _require("stall_timeout", is_long_enough, expected, self.stall_timeout)
        _check_whole("batch_size", self.batch_size, 1, 5000)
        _check_whole("history", self.history, 0, MAX_HISTORY)
        expected = 'None, positive seconds up to 100 years or "interval"'
        _require("expires", _is_expires(self.expires), expected, self.expires)
        _check_choice("misfire", self.misfire, ("coalesce", "skip", "all"))
        _check_choice("dispatch", self.dispatch, ("auto", "batch", "plain"))
        _require(
            "traceparent", isinstance(self.traceparent, bool), "True or False", self.traceparent
        )
        _check_metrics(self.metrics_port, self.metrics_host)
        _check_notify(self.notify)
        _check_heartbeat(self.heartbeat_url, self.heartbeat_file)

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
            url: replaces the setting where no server is asked.

        Raises:
            ConfigurationError: a value is wrong, a name is unknown or has a spelling that Celery
                ignores, a setting has two values in two spellings, or there is no Redis to use.
        """
        values = {name: _value(app, name) for name in _names_set(app)}
        for name in _DURATIONS & values.keys():
            seconds = seconds_of(values[name])
            if seconds is not None:
                values[name] = seconds
        values["expect"] = _expectation(values.get("expect"))
        if url is not None:
            values["url"] = url
        elif values.get("url") is None:
            values["url"] = _broker_url(app)
            values["redis_options"] = {
                **_broker_tls(app),
                **_mapping(values.get("redis_options", {})),
            }
        if urls.scheme_of(str(values["url"])) in urls.SENTINEL:
            values["redis_options"] = {
                **_broker_sentinel(app),
                **_mapping(values.get("redis_options", {})),
            }
        remember_passwords((values.get("heartbeat_url"), values.get("notify")))
        remember_passwords((values["url"], values.get("redis_options")))
        remember_passwords((app.conf.broker_write_url, app.conf.broker_transport_options))
        values.setdefault("owner", app.main or cls.__dataclass_fields__["owner"].default)
        return cls(**values)


def has_own_url(app: Celery) -> bool:
    """Return whether ``redbeat_lite_url`` is set, which takes precedence over the broker's URL."""
    return "url" in _names_set(app)


def broker_urls(app: Celery) -> list[str]:
    """Return the URLs of the brokers, of which Celery uses the first one that answers."""
    url = app.conf.broker_write_url
    if isinstance(url, (list, tuple)):
        return [str(one) for one in url]
    return str(url or "").split(";")


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


def _names_set(app: Celery) -> list[str]:
    """Return the names that the user has set, without the prefix.

    Raises ConfigurationError if there is no such setting, or if Celery ignores it in this spelling.
    """
    # This loads a configuration that is still pending. Only then the app knows its namespace.
    keys = [str(key) for key in app.conf]
    # Without a namespace, Celery's own names in capitals begin with "CELERY_", and users write ours
    # alike by mistake.
    start = (app.conf.prefix or "CELERY_").lower()
    names = []
    for key in keys:
        setting = key.lower().removeprefix(start)
        if setting.startswith(PREFIX):
            name = setting.removeprefix(PREFIX)
            _check_spelling(app.conf.prefix or "", key, name)
            names.append(name)
    return names


def _check_spelling(namespace: str, key: str, name: str) -> None:
    known_names = [setting.name for setting in fields(Settings)]
    candidates = [name]
    if name not in known_names:
        candidates = difflib.get_close_matches(name, known_names, n=1, cutoff=0.5)
    valid_keys = [
        spelling for candidate in candidates for spelling in _spellings(namespace, candidate)
    ]
    if key not in valid_keys:
        nearest = difflib.get_close_matches(key, valid_keys, n=1, cutoff=0)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigurationError(f"{key}: there is no such setting{hint}")


def _spellings(namespace: str, name: str) -> tuple[str, str]:
    """Return the two keys under which Celery reads a setting.

    Without a namespace Celery reads capitals too, because Django hands on all settings in capitals.
    """
    own = PREFIX + name
    full = namespace + own
    is_upper = not namespace or namespace.isupper()
    return own, full.upper() if is_upper else full.lower()


def _value(app: Celery, name: str) -> Any:
    """Return the value of a setting, in a namespace the one that Celery itself would use.

    Raises ConfigurationError if there is no namespace and the two spellings have different values.
    """
    own, other = _spellings(app.conf.prefix or "", name)
    if app.conf.prefix:
        return app.conf[own]
    values = [app.conf[key] for key in (own, other) if key in app.conf]
    if len(values) == 2 and values[0] != values[1]:
        raise ConfigurationError(
            f"{own} and {other} are both set, to different values; set one of them"
        )
    return values[0]


# -- Settings of the broker -----------------------------------------------------------------------


def _broker_url(app: Celery) -> str:
    servers = broker_urls(app)
    scheme = urls.scheme_of(servers[0]) if servers and servers[0] else "none"
    if scheme in urls.SENTINEL:
        return ";".join(servers)
    if scheme in urls.SCHEMES:
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


# -- Checks ---------------------------------------------------------------------------------------


def _require(name: str, is_right: bool, expected: str, value: object) -> None:
    if not is_right:
        raise ConfigurationError(f"{PREFIX}{name}: expected {expected}, got {value!r}")


def _check_url(value: object) -> None:
    # The value may contain a password, so the error shows only its scheme.
    if not isinstance(value, str) or "://" not in value:
        raise ConfigurationError(f"{PREFIX}url: expected a URL such as redis://host:6379/0")
    scheme = urls.scheme_of(value)
    if scheme not in urls.SCHEMES:
        raise ConfigurationError(
            f"{PREFIX}url: expected one of {', '.join(urls.SCHEMES)}, got {scheme!r}"
        )
    try:
        if scheme in urls.SINGLE:
            urls.connection_options(value)
        else:
            urls.addresses_and_options(value)
    except ValueError:
        raise ConfigurationError(
            f"{PREFIX}url: expected {scheme}://user:password@host:port/database, with special "
            "characters of the "
            "password in percent form; host, port or database cannot be read"
        ) from None


def _check_options(url: str, options: Any) -> None:
    _mapping(options)
    scheme = urls.scheme_of(url)
    if scheme in urls.SENTINEL and not options.get("master_name"):
        raise ConfigurationError(
            f"{PREFIX}redis_options: expected the master_name that the sentinels of "
            f"{PREFIX}url watch, got none"
        )
    if scheme in urls.CLUSTER and (
        urls.addresses_and_options(url)[1].get("db") or options.get("db")
    ):
        raise ConfigurationError(
            f"{PREFIX}url: expected database 0, the only one of a Redis Cluster"
        )


def _mapping(value: Any) -> Mapping[str, Any]:
    # The error shows only the type, because the value may contain a password.
    _require("redis_options", isinstance(value, Mapping), "a mapping", type(value).__name__)
    return value  # type: ignore[no-any-return]


def _check_text(name: str, value: object) -> None:
    is_text = isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()
    _require(name, is_text, "1 to 200 printable characters", value)


def _check_number(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_right = is_number and least <= value <= _LONGEST  # type: ignore[operator]  # it is a number
    _require(name, is_right, f"seconds, at least {least:g} and at most {_LONGEST}", value)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    is_right = type(value) is int and least <= value <= most
    _require(name, is_right, f"a whole number from {least} to {most}", value)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    _require(name, value in choices, f"one of {', '.join(choices)}", value)


def _is_expires(value: object) -> bool:
    if value is None or value == "interval":
        return True
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= 100 * YEAR  # type: ignore[operator]  # it is a number


def _expectation(value: object) -> Expect | None:
    try:
        expect = Expect.of(value)
    except InvalidEntry as exc:
        raise ConfigurationError(f"{PREFIX}{exc}") from None
    is_right = expect is None or (expect is not False and expect.succeed_every is None)
    _require(
        "expect", is_right, "None or a mapping of start_within, finish_within and failures", value
    )
    return expect or None


def _check_metrics(port: object, host: object) -> None:
    is_port = port is None or (type(port) is int and 1 <= port <= 65_535)
    _require("metrics_port", is_port, "a port from 1 to 65535", port)
    try:
        is_address = isinstance(host, str) and bool(ip_address(host))
    except ValueError:
        is_address = False
    _require(
        "metrics_host",
        is_address,
        "the IP address to listen on, such as 127.0.0.1 or 0.0.0.0",
        host,
    )


def _check_notify(value: object) -> None:
    # The URLs contain secrets, so the error shows none of them.
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(url, str) and "://" in url for url in value):  # type: ignore[attr-defined]
        raise ConfigurationError(
            f"{PREFIX}notify: expected a list of URLs such as mailto://user:password@host"
        )


def _check_heartbeat(url: object, file: object) -> None:
    # Any part of the URL may be a secret, so the error shows none of it.
    if url is not None and not _is_web_url(url):
        raise ConfigurationError(
            f"{PREFIX}heartbeat_url: expected a URL such as https://host/path, got one that is none"
        )
    is_path = file is None or (isinstance(file, str) and file != "")
    _require("heartbeat_file", is_path, "the path of a file", file)


def _is_web_url(url: object) -> bool:
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return False
    # urllib would take a user and a password before the host as a part of its name.
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and has_port
        and parts.username is None
    )
