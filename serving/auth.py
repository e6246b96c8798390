"""Who may call what: keys, admin keys, and what keeps a keyless server from web pages.

Owns the decision; knows nothing of routes beyond their paths. ``check_exposure`` runs before
anything is loaded.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from dvi.config import DviConfig, ServingConfig
from serving.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready", "/"})
OPEN_FOLDER = "/static/"  # scripts and style of the page at "/", which hold no data


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the gate checks. No key at all makes the server one for this machine only."""

    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    metrics_open: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    cors_origins: tuple[str, ...] = ()


def _lines(path: str | None, name: str) -> list[str]:
    if path is None:
        return []
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: cannot read {path}: {error}") from error
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise ValueError(f"{name}: {path} holds no key")
    return keys


def _split(text: str | None) -> list[str]:
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def access_rules(config: ServingConfig, environ: Mapping[str, str] = os.environ) -> AccessRules:
    """Gather keys from environment, files and config. ValueError: a file has none."""
    api_keys = _split(environ.get("DVI_API_KEY")) + _split(config.api_key)
    api_keys += _lines(config.api_key_file, "serving.api_key_file")
    admin_keys = _split(environ.get("DVI_ADMIN_KEY"))
    admin_keys += _lines(config.admin_key_file, "serving.admin_key_file")
    return AccessRules(
        api_keys=tuple(dict.fromkeys(api_keys)),
        admin_keys=tuple(dict.fromkeys(admin_keys)),
        metrics_open=config.metrics_open,
        allowed_hosts=frozenset(host.lower() for host in _split(config.allowed_hosts)),
        cors_origins=tuple(_split(config.cors_origins)),
    )


def is_loopback(host: str) -> bool:
    """Whether an address or name, without port, stays on this machine."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_exposure(config: DviConfig, rules: AccessRules) -> bool:
    """Whether content is kept. ValueError where a bind beyond loopback lacks a decision."""
    host = config.serving.host
    log_content = config.replay.log_content
    if is_loopback(host):
        return log_content is not False
    if not rules.api_keys:
        raise ValueError(
            f"serving.host={host} is reachable from other machines: set DVI_API_KEY "
            "(or serving.api_key_file)"
        )
    if log_content is None:
        raise ValueError(
            f"serving.host={host} is reachable from other machines: say whether prompts and "
            "answers are kept for training, replay.log_content=true or false"
        )
    return log_content


def with_scopes(config: DviConfig, rules: AccessRules) -> DviConfig:
    """The config with both scopes said: null is global, but user with several keys (tenants)."""
    default = "user" if len(rules.api_keys) > 1 else "global"
    drafter, decoding = config.drafter, config.decoding
    memory_scope = drafter.memory_scope or default
    prefix_scope = decoding.prefix_scope or default
    return replace(
        config,
        drafter=replace(drafter, memory_scope=memory_scope),
        decoding=replace(decoding, prefix_scope=prefix_scope),
    )


def _matches(given: str, keys: Iterable[str]) -> bool:
    """Compare with every key in constant time; no early way out tells which one was near."""
    found = False
    for key in keys:
        found |= hmac.compare_digest(given.encode(), key.encode())
    return found


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _needs_key(what: str) -> ApiError:
    return ApiError(
        401,
        f"{what} Send Authorization: Bearer KEY.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _check_keys(rules: AccessRules, path: str, headers: Headers) -> None:
    given = _bearer(headers)
    is_admin = _matches(given, rules.admin_keys)
    is_user = _matches(given, rules.api_keys)
    if rules.admin_keys and (path == "/admin" or path.startswith("/admin/")):
        if is_user and not is_admin:
            raise ApiError(403, "This route wants the admin key.", code="admin_key_required")
        if not is_admin:
            raise _needs_key("This route wants the admin key.")
    elif rules.api_keys and not (is_user or is_admin):
        raise _needs_key("The API key is missing or wrong.")


def _check_origin(rules: AccessRules, headers: Headers) -> None:
    """A page on another site must not reach a server that asks nobody for a key."""
    host = headers.get("host", "")
    name = urlsplit(f"//{host}").hostname or ""
    if not is_loopback(name) and name not in rules.allowed_hosts:
        raise ApiError(
            403,
            "This server has no key and answers to loopback names only (serving.allowed_hosts).",
            code="host_not_allowed",
        )
    origin = headers.get("origin")
    if origin is None or origin in rules.cors_origins:
        return
    if urlsplit(origin).netloc.lower() != host.lower():
        raise ApiError(403, "Web pages of another origin may not call.", code="origin_not_allowed")


def check_access(rules: AccessRules, method: str, path: str, headers: Headers) -> str:
    """The key that the request came with, "" without one; raises the ApiError that answers it."""
    if not rules.api_keys:
        _check_origin(rules, headers)
    is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
    is_open |= path == "/metrics" and rules.metrics_open
    if not is_open:
        _check_keys(rules, path, headers)
    if method == "POST":
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if kind != "application/json" and (has_body or kind):
            raise ApiError(415, "The body must be application/json.", code="not_json")
    return _bearer(headers) if rules.api_keys and not is_open else ""
