#!/usr/bin/env bash
# The gate: format, lint, types, layers, tests. `--full` adds the slow tier, which resumes where
# it stopped: one JSON line a passed test in .dvi/full.jsonl, kept while the sources are the same.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

full=0
for word in "$@"; do
    case "$word" in
        --full) full=1 ;;
        *) say "usage: scripts/test.sh [--full]"; exit 2 ;;
    esac
done
ensure_venv
ensure_postgres
cd "$ROOT"
# Two workers on two cores: more threads than that only wait for each other.
export OMP_NUM_THREADS=1
bin="$VENV/bin"

"$bin/ruff" format --check --quiet
"$bin/ruff" check --quiet
"$bin/mypy"
"$bin/lint-imports" --no-cache
if [ "$full" = 0 ]; then
    # The real model is fetched only if a test of the gate needs it.
    if "$bin/pytest" --collect-only -q -m "real_model and not slow" >/dev/null 2>&1; then
        "$bin/dvi" models fetch smollm2-135m
    fi
    exec "$bin/pytest" -n 2 -m "not slow and not gpu"
fi
"$bin/dvi" models fetch smollm2-135m
"$bin/pytest" -n 2 -m "not slow and not gpu"
log="$ROOT/.dvi/full.jsonl"  # with "=": pytest takes the word after an unknown option for a path
"$bin/pytest" -n 2 -m "slow and not alone and not gpu" --full-log="$log"
# One after the other: memory over time and pace on the real model would feel a neighbour.
unset OMP_NUM_THREADS
exec "$bin/pytest" -m "slow and alone and not gpu" --full-log="$log"
