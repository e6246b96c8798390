"""Everything of a W&B run that is text or a small file: ids, names, masked config, a login.

Does not import W&B.
"""

from __future__ import annotations

import netrc
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dvi.config.files import replace_file
from dvi.config.state_file import read_state

_SECRET = re.compile(r"(api_key|admin_key|password|secret|token)$")


def group_id(state_dir: Path) -> str:
    """One name for all runs over a state folder: the folder's own id, else one kept in wandb/."""
    if (state := read_state(state_dir)) is not None:
        return f"dvi-{state.id}"
    return f"dvi-{kept_id(state_dir / 'wandb' / 'group-id')}"


def kept_id(path: Path) -> str:
    """The id in ``path``, made there on the first call."""
    if path.is_file() and re.fullmatch(r"[0-9a-f]{12}", text := path.read_text("ascii").strip()):
        return text
    made = uuid.uuid4().hex[:12]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, f"{made}\n".encode(), durable=False)
    return made


def finds_login(base_url: str, environ: Mapping[str, str]) -> bool:
    """Whether W&B would find a login in the environment or in netrc."""
    if any(environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    host, named = urlsplit(base_url).hostname or "", environ.get("NETRC")
    paths = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for path in paths:
        try:
            if netrc.netrc(str(path.expanduser())).hosts.get(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def artifact_name(run_config: Mapping[str, Any]) -> str:
    """``dvi-<model>-<drafter>``, in the characters that W&B takes."""
    model = str(_at(run_config, "model", "path")).rstrip("/").rsplit("/", 1)[-1]
    name = f"dvi-{model}-{_at(run_config, 'drafter', 'kind')}"
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:128]


def _at(config: Mapping[str, Any], group: str, key: str) -> object:
    part = config.get(group)
    return part[key] if isinstance(part, Mapping) and key in part else "unknown"


def mask(value: Any, name: str = "") -> Any:
    """``run_config`` without keys and passwords, as plain JSON values."""
    if isinstance(value, Mapping):
        return {str(key): mask(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [mask(part, name) for part in value]
    if isinstance(value, str) and _SECRET.search(name):
        return "***"
    if isinstance(value, str) and "://" in value:
        return _without_login(value)
    return value


def _without_login(url: str) -> str:
    host = urlsplit(url).netloc
    return url.replace(host, "***@" + host.rsplit("@", 1)[1], 1) if "@" in host else url
