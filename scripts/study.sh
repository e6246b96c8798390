#!/usr/bin/env bash
# The study of docs/study.md: bash scripts/study.sh --quick | --full | --small | --served [key=value ...]
# It goes on where it was stopped: one JSON line an arm in .dvi/study/SIZE/arms.jsonl.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ensure_venv
case " $* " in
    *" model.path="* | *" --help "* | *" --list "*) ;;
    *) "$VENV/bin/dvi" models fetch smollm2-135m >&2 ;;
esac
exec "$VENV/bin/python" -m dvi.study "$@"
