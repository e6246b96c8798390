"""Hydra's and OmegaConf's exceptions as one line that names the key and the way out.

Owns the wording; does not know which command was launched.
"""

from __future__ import annotations

import difflib
import re

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import YAMLError

from dvi.config.schema import leaves
from dvi.config.secrets import mask
from dvi.config.validate import ConfigError, unknown_key

HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # "In 'x': SomeError raised while composing config:" announces the line that says it.
    line = lines[1] if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return mask(line)


def _root_cause(error: BaseException) -> OmegaConfBaseException | None:
    """The OmegaConf error deepest in the chain that names the key."""
    found = None
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OmegaConfBaseException) and current.full_key:
            found = current
        current = current.__cause__ or current.__context__
    return found


def _missing_option(error: MissingConfigException) -> ConfigError:
    wanted = error.missing_cfg_file or ""
    group, _, name = wanted.rpartition("/")
    options = sorted(error.options or ())
    if not group:
        return ConfigError(f"no config named {wanted!r}: {_first_line(error)}")
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.4)
    hint = f"; did you mean `{group}={near[0]}`?" if near else ""
    known = f" (options: {', '.join(options)})" if options else ""
    return ConfigError(f"group `{group}` has no option `{name}`{hint}{known}")


def _wrong_value(cause: OmegaConfBaseException) -> ConfigError:
    key = cause.full_key or ""
    kinds = {leaf.key: leaf.kind.__name__ for leaf in leaves()}
    value = re.search(r"Value '(.*?)'", str(cause))
    got = f", got {mask(f'{key}={value[1]}').partition('=')[2]!r}" if value else ""
    if key in kinds:
        return ConfigError(f"`{key}` must be {kinds[key]}{got}")
    return ConfigError(f"`{key}`: {_first_line(cause)}")


def explain(error: BaseException) -> ConfigError:
    """One clear line for an error that Hydra raised while it composed a config."""
    if isinstance(error, MissingConfigException):
        return _missing_option(error)
    if isinstance(error, OverrideParseException):
        # Hydra's second line is a grammar error; the override itself says more.
        return ConfigError(f"cannot read the override `{mask(error.override)}`: write key=value")
    if isinstance(error, YAMLError):
        return ConfigError(mask(" ".join(str(error).split())))
    cause = _root_cause(error)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return unknown_key(cause.full_key or "")
    if isinstance(cause, ValidationError):
        return _wrong_value(cause)
    return ConfigError(_first_line(error).rstrip("."))
