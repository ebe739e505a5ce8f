"""The ``redbeat_lite_*`` settings, read once from ``app.conf`` and validated."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from . import urls
from .errors import ConfigurationError, remember
from .instants import YEAR

if TYPE_CHECKING:
    from celery import Celery

#: How often the leader renews within one lease.
RENEWALS_PER_LEASE = 4

#: The URL of settings that are read for something which asks no server.
NO_SERVER = "redis://none"

_PREFIX = "redbeat_lite_"

#: Most seconds of a lease or a timeout: a day. What is longer is a unit mistaken.
_LONGEST = 86_400

#: Most runs of an entry that are remembered.
MAX_HISTORY = 1000

#: Longest name of an entry or a task, in characters.
MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a user can set. All times are in seconds.

    Parameters:
        url: the Redis server, or the servers, that hold the schedule; the broker's own URL where that is a Redis.
        redis_options: further keyword arguments for the redis-py client; ``master_name`` and ``sentinel_kwargs`` too.
        key_prefix: what all keys begin with; schedules under different prefixes know nothing of each other.
        owner: who owns the entries of ``beat_schedule``; entries of another owner are never touched.
        lease: how long a leader that falls silent stays leader. 1 to 86,400.
        batch_size: entries per round trip, 1 to 5,000.
        expires: default of an entry's ``expires``: ``None``, seconds, or ``"interval"``.
        clock_slack: by how much the clocks of beats and workers may differ: a message that expires with its interval
            lives that much longer. 0 to 86,400.
        misfire: default of an entry's ``misfire``: ``"coalesce"``, ``"skip"`` or ``"all"``.
        once_lease: lease of a once-lock. 1 to 86,400.
        history: default of an entry's ``history``: how many of its last runs are remembered, 0 to 1,000.
        publish_timeout: after how long a publish that hangs is given up. 0.1 to 86,400.
        stall_timeout: after how long without progress a leader stops renewing its lease. 1 to 86,400.
        dispatch: ``"auto"``, ``"batch"`` or ``"plain"``.
        traceparent: whether the messages of the beat carry the W3C header of this name, each with a trace of its own.
        metrics_port: the port on which the beat serves metrics for Prometheus, 1 to 65,535.
        metrics_host: the address on which it does, of IP; ``"0.0.0.0"`` is every one of the machine.
        heartbeat_file: a file that the beat touches every second while its loop lives; its directory must exist.
    """

    # These two may hold a password, so they are in no repr().
    url: str = field(repr=False)
    redis_options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    key_prefix: str = "redbeat-lite"
    owner: str = "celery"
    lease: float = 4.0
    batch_size: int = 500
    expires: float | str | None = "interval"
    clock_slack: float = 5.0
    misfire: str = "coalesce"
    once_lease: float = 60.0
    history: int = 20
    publish_timeout: float = 5.0
    stall_timeout: float = 30.0
    dispatch: str = "auto"
    traceparent: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    heartbeat_file: str | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        _check_options(self.url, self.redis_options)
        _check_text("key_prefix", self.key_prefix)
        _expect("key_prefix", not set(self.key_prefix) & set("{}"), "text without braces", self.key_prefix)
        _check_text("owner", self.owner)
        _check_number("lease", self.lease, 1.0)
        _check_number("once_lease", self.once_lease, 1.0)
        _check_number("clock_slack", self.clock_slack, 0.0)
        _check_number("publish_timeout", self.publish_timeout, 0.1)
        _check_number("stall_timeout", self.stall_timeout, 1.0)
        shortest = (
            f"more than {_PREFIX}publish_timeout ({self.publish_timeout:g} s), or a slow publish counts as a hang"
        )
        _expect("stall_timeout", self.stall_timeout > self.publish_timeout, shortest, self.stall_timeout)
        _check_whole("batch_size", self.batch_size, 1, 5000)
        _check_whole("history", self.history, 0, MAX_HISTORY)
        _expect(
            "expires", _is_expires(self.expires), 'None, positive seconds up to 100 years or "interval"', self.expires
        )
        _check_choice("misfire", self.misfire, ("coalesce", "skip", "all"))
        _check_choice("dispatch", self.dispatch, ("auto", "batch", "plain"))
        _expect("traceparent", isinstance(self.traceparent, bool), "True or False", self.traceparent)
        port, file = self.metrics_port, self.heartbeat_file
        is_port = type(port) is int and 1 <= port <= 65_535
        _expect("metrics_port", port is None or is_port, "a port from 1 to 65535", port)
        where = "the IP address to listen on, such as 127.0.0.1 or 0.0.0.0"
        _expect("metrics_host", _is_address(self.metrics_host), where, self.metrics_host)
        _expect("heartbeat_file", file is None or (isinstance(file, str) and file != ""), "the path of a file", file)

    @property
    def slack_ms(self) -> int:
        """By how many milliseconds the clocks of beats and workers may differ."""
        return round(1000 * self.clock_slack)

    @classmethod
    def from_app(cls, app: Celery, *, url: str | None = None) -> Settings:
        """Read the settings of a Celery app.

        Django's form works too: with ``config_from_object(..., namespace="CELERY")`` the setting ``url`` is
        ``CELERY_REDBEAT_LITE_URL``, and without a namespace ``REDBEAT_LITE_URL``.

        Parameters:
            url: instead of the one that is set, for what asks no server.

        Raises:
            ConfigurationError: a value is wrong, a name is unknown, written so that Celery passes over it or, without a
                namespace, given twice with two values, or there is no Redis to use.
        """
        values = {name: _value(app, name) for name in _given(app)}
        if isinstance(values.get("expires"), timedelta):
            values["expires"] = values["expires"].total_seconds()
        if url is not None:
            values["url"] = url
        elif values.get("url") is None:
            values["url"] = _broker_url(app)
            values["redis_options"] = {**_broker_tls(app), **_mapping(values.get("redis_options", {}))}
        if urls.scheme_of(str(values["url"])) in urls.SENTINEL:
            values["redis_options"] = {**_broker_sentinel(app), **_mapping(values.get("redis_options", {}))}
        broker = app.conf.broker_write_url, app.conf.broker_transport_options
        remember((values["url"], values.get("redis_options"), *broker))
        values.setdefault("owner", app.main or cls.__dataclass_fields__["owner"].default)
        return cls(**values)


def _given(app: Celery) -> list[str]:
    """Names set by the user, without the prefix.

    Raises:
        ConfigurationError: there is no such setting, or Celery passes over it as it is spelled.
    """
    # Reading the names loads a configuration that is still pending. Only then it knows of its namespace: asked earlier,
    # it has none, and every setting in Django's form would go unnoticed.
    keys = [str(key) for key in app.conf]
    # Without a namespace most of Celery's own names in capitals begin so, and ours may be written alike, by mistake.
    start = (app.conf.prefix or "CELERY_").lower()
    names = []
    for spelled in keys:
        plain = spelled.lower().removeprefix(start)
        if plain.startswith(_PREFIX):
            name = plain.removeprefix(_PREFIX)
            _check_spelling(app.conf.prefix or "", spelled, name)
            names.append(name)
    return names


def _check_spelling(namespace: str, spelled: str, name: str) -> None:
    known = [f.name for f in fields(Settings)]
    near = [name] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    right = [each for found in near for each in _spellings(namespace, found)]
    if spelled not in right:
        nearest = difflib.get_close_matches(spelled, right, n=1, cutoff=0)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigurationError(f"{spelled}: there is no such setting{hint}")


def _spellings(namespace: str, name: str) -> tuple[str, str]:
    """The setting ``name`` as Celery reads it; without a namespace in capitals too, all that Django hands on."""
    own, full = _PREFIX + name, namespace + _PREFIX + name
    return own, full.upper() if not namespace or namespace.isupper() else full.lower()


def _value(app: Celery, name: str) -> Any:
    """The value of a setting; with a namespace that which Celery itself would take.

    Raises:
        ConfigurationError: without one, there are two.
    """
    own, other = _spellings(app.conf.prefix or "", name)
    if app.conf.prefix:
        return app.conf[own]
    values = [app.conf[each] for each in (own, other) if each in app.conf]
    if len(values) == 2 and values[0] != values[1]:
        raise ConfigurationError(f"{own} and {other} are both set, to different values; set one of them")
    return values[0]


def _broker_url(app: Celery) -> str:
    url = app.conf.broker_write_url
    given = [str(each) for each in url] if isinstance(url, (list, tuple)) else str(url or "").split(";")
    scheme = urls.scheme_of(given[0]) if given and given[0] else "none"
    if scheme in urls.SENTINEL:
        return ";".join(given)
    if scheme in urls.SCHEMES:
        return given[0]
    raise ConfigurationError(
        f"redbeat_lite_url: expected the URL of a Redis server, because the broker ({scheme}) cannot hold the schedule"
    )


def _broker_tls(app: Celery) -> dict[str, Any]:
    """What ``broker_use_ssl`` says about certificates, as options of redis-py's client."""
    given = app.conf.broker_use_ssl
    return {"ssl": True, **given} if isinstance(given, Mapping) else {}


def _broker_sentinel(app: Celery) -> dict[str, Any]:
    """What the broker's transport options say about Sentinel."""
    given = app.conf.broker_transport_options or {}
    return {name: given[name] for name in ("master_name", "sentinel_kwargs") if name in given}


def _mapping(value: Any) -> Mapping[str, Any]:
    _check_mapping(value)
    return value  # type: ignore[no-any-return]


def _expect(name: str, ok: bool, expected: str, value: object) -> None:
    if not ok:
        raise ConfigurationError(f"{_PREFIX}{name}: expected {expected}, got {value!r}")


def _check_url(value: object) -> None:
    # The value may hold a password, so the message shows its scheme alone.
    if not isinstance(value, str) or "://" not in value:
        raise ConfigurationError(f"{_PREFIX}url: expected a URL such as redis://host:6379/0")
    scheme = urls.scheme_of(value)
    if scheme not in urls.SCHEMES:
        raise ConfigurationError(f"{_PREFIX}url: expected one of {', '.join(urls.SCHEMES)}, got {scheme!r}")
    try:
        _ = urls.parsed(value) if scheme in urls.SINGLE else urls.several(value)
    except ValueError:
        raise ConfigurationError(
            f"{_PREFIX}url: expected {scheme}://user:password@host:port/database, with special characters of the "
            "password in percent form; host, port or database cannot be read"
        ) from None


def _check_options(url: str, options: Any) -> None:
    _check_mapping(options)
    scheme = urls.scheme_of(url)
    if scheme in urls.SENTINEL and not options.get("master_name"):
        raise ConfigurationError(
            f"{_PREFIX}redis_options: expected the master_name that the sentinels of {_PREFIX}url watch, got none"
        )
    if scheme in urls.CLUSTER and (urls.several(url)[1].get("db") or options.get("db")):
        raise ConfigurationError(f"{_PREFIX}url: expected database 0, the only one of a Redis Cluster")


def _check_mapping(value: object) -> None:
    # What is given instead may hold a password.
    _expect("redis_options", isinstance(value, Mapping), "a mapping", type(value).__name__)


def _check_text(name: str, value: object) -> None:
    ok = isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()
    _expect(name, ok, "1 to 200 printable characters", value)


def _check_number(name: str, value: object, least: float) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= _LONGEST
    _expect(name, ok, f"seconds, at least {least:g} and at most {_LONGEST}", value)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    ok = type(value) is int and least <= value <= most
    _expect(name, ok, f"a whole number from {least} to {most}", value)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    _expect(name, value in choices, f"one of {', '.join(choices)}", value)


def _is_address(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(ip_address(value))
    except ValueError:
        return False


def _is_expires(value: object) -> bool:
    if value is None or value == "interval":
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 100 * YEAR
