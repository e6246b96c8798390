#!/usr/bin/env bash
# From a fresh checkout to the demo on a real model: bash scripts/quickstart.sh
# With `serve` it ends with the running server; further words are overrides of that command.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

command="demo"
case "${1:-}" in
    demo | serve) command="$1"; shift ;;
esac
ensure_venv
"$VENV/bin/dvi" models fetch smollm2-135m
exec "$VENV/bin/dvi" "$command" "$@"
