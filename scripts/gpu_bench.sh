#!/usr/bin/env bash
# The GPU suite: `pytest -m gpu`, figures as JSON lines in .dvi/bench/gpu.jsonl. Under 8 minutes.
# With smollm2-135m fetched, `dvi bench` on it as well. Needs an environment that sees a CUDA device:
# PYTHON names its interpreter, else the checkout's .venv, else python3.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
python="${PYTHON:-$ROOT/.venv/bin/python}"
[ -x "$python" ] || python="$(command -v python3)"
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu_bench: torch of $python sees no CUDA device; nothing was measured" >&2
    exit 1
fi
out="${OUT:-$ROOT/.dvi/bench}"
mkdir -p "$out"
timeout 300 "$python" -m pytest tests/gpu -m gpu -s | tee "$out/gpu.log"
grep -o '{"check".*}' "$out/gpu.log" >"$out/gpu.jsonl"
if [ -d "${DVI_HOME:-$ROOT/.dvi}/models/smollm2-135m" ]; then
    timeout 170 "$python" -m dvi bench model.dtype=bfloat16 bench.parts=curve+swaps \
        bench.repeats=2 | tee "$out/gpu_smollm2.log"
fi
echo "figures: $out/gpu.jsonl"
