"""Which values are secret, and how they look where they must not be read.

Owns the mask; does not know where secrets come from.
"""

from __future__ import annotations

import re

MASK = "***"
SECRET_KEYS = ("serving.api_key",)  # whole value secret

_URL_PASSWORD = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s:/@]*):(?P<password>[^\s/]*)@")
_NAMED_SECRET = re.compile(
    r"(?P<head>\b(?:api_key|admin_key|DVI_API_KEY|DVI_ADMIN_KEY)['\"]?\s*[:=]\s*)"
    r"(?!null\b|None\b|\s)(?P<value>'[^'\n]*'|\"[^\"\n]*\"|[^\s,})\]]+(?:,[^\s,})\]]+)*)"
)


def has_password(url: str) -> bool:
    """Whether a URL carries a password in its authority part."""
    return _URL_PASSWORD.search(url) is not None


def mask(text: str) -> str:
    """The text with passwords in URLs and values of secret keys replaced; idempotent."""
    text = _URL_PASSWORD.sub(rf"\g<head>:{MASK}@", text)
    return _NAMED_SECRET.sub(rf"\g<head>'{MASK}'", text)
