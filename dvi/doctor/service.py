"""Checks of what a server needs around it: port, keys, W&B.

Owns the look at the outside; starts nothing and asks no other machine.
"""

from __future__ import annotations

import errno
import http.client
import importlib.util
import os
import socket
from collections.abc import Mapping

from dvi.config import DviConfig
from dvi.doctor.finding import Finding, fault, ok, warning
from dvi.tracking.wandb_names import finds_login
from serving.auth import access_rules, check_exposure

WANDB_URL = "https://api.wandb.ai"
ANSWER_TIMEOUT_S = 2.0


def check_port(config: DviConfig) -> Finding:
    """The port is free, or a server of ours has it."""
    host, port = config.serving.host, config.serving.port
    if port == 0:
        return ok("port", "any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return _port_trouble(host, port, error)
    return ok("port", f"{host}:{port} is free")


def _port_trouble(host: str, port: int, error: OSError) -> Finding:
    if error.errno == errno.EADDRINUSE:
        if _answers_as_dvi(host, port):
            return ok("port", f"a dvi server answers at {host}:{port}")
        message = f"{host}:{port} is taken by another program"
        return fault("port", message, f"dvi serve serving.port={port + 1}")
    if error.errno == errno.EACCES:
        return fault("port", f"port {port} is for root only", "dvi serve serving.port=8000")
    return fault(
        "port", f"serving.host={host}: {error.strerror}", "dvi serve serving.host=127.0.0.1"
    )


def _answers_as_dvi(host: str, port: int) -> bool:
    """Whether GET /ready is answered as our server does, which needs no key."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(name, port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/ready", headers={"Host": "localhost"})
        return connection.getresponse().read(200).startswith(b'{"status":')
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def check_access(config: DviConfig) -> Finding:
    """A server that others reach has a key, and somebody decided about content."""
    try:
        rules = access_rules(config.serving)
        keeps = check_exposure(config, rules)
    except ValueError as error:
        message = str(error)
        mend = "export DVI_API_KEY=$(openssl rand -hex 24)"
        if "replay.log_content" in message:
            mend = "dvi serve replay.log_content=false"
        return fault("access", message, mend)
    who = "with a key" if rules.api_keys else "this machine only, without a key"
    return ok("access", f"{who}; prompts and answers are {'kept' if keeps else 'not kept'}")


def check_wandb(config: DviConfig, environ: Mapping[str, str] = os.environ) -> Finding:
    """Where curves are to go to W&B: the package is there and a login."""
    if config.tracking.kind != "wandb":
        return ok("tracking", f"tracking={config.tracking.kind}")
    if importlib.util.find_spec("wandb") is None:
        message = "tracking=wandb needs the wandb package"
        return fault("tracking", message, "pip install 'dvi-serving[wandb]'")
    mode = environ.get("WANDB_MODE", "online")
    url = environ.get("WANDB_BASE_URL", WANDB_URL)
    if mode in ("offline", "disabled") or finds_login(url, environ):
        return ok("tracking", f"W&B, {mode}")
    return warning("tracking", "no W&B login: runs stay offline in the state folder", "wandb login")
