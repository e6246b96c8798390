#!/usr/bin/env bash
# Faults under load on a tiny model: 16 clients, a drifting stream, the trainer on, a fault every
# minute (docs/faults.md). `--minutes N` (30), `--every SECONDS` between faults.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

minutes=30
every=60
while [ "$#" -gt 0 ]; do
    case "$1" in
        --minutes) minutes="${2:?}"; shift 2 ;;
        --every) every="${2:?}"; shift 2 ;;
        *) say "usage: scripts/soak.sh [--minutes N] [--every SECONDS]"; exit 2 ;;
    esac
done
ensure_venv
cd "$ROOT"
export DVI_SOAK_MINUTES="$minutes" DVI_SOAK_EVERY_S="$every" OMP_NUM_THREADS=1
exec "$VENV/bin/pytest" -s tests/soak/test_fault_soak.py
