# Sourced by quickstart.sh and test.sh: the checkout, a Python, the venv with the locked packages.
# Everything it makes is under .venv/ and .dvi/ of the checkout.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.venv"
LOCK="$ROOT/requirements.lock"
MARKER="$VENV/.installed-lock"

say() { printf '%s\n' "$*" >&2; }

is_new_enough() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3.14 python3 python; do
        if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && is_new_enough "$name"; then
            command -v "$name"
            return 0
        fi
    done
    say "Python 3.11 or newer with venv is needed and was not found."
    say "Debian/Ubuntu: sudo apt install python3 python3-venv;  macOS: brew install python@3.12"
    say "Another place: PYTHON=/path/to/python3.12 bash $0"
    return 1
}

file_hash() {
    "$1" -c 'import hashlib, sys
for name in sys.argv[1:]:
    sys.stdout.write(hashlib.sha256(open(name, "rb").read()).hexdigest())' "${@:2}"
}

# The marker holds the hash of what was installed, so that the second run does nothing.
ensure_venv() {
    local python wanted
    if [ ! -x "$VENV/bin/python" ] || ! is_new_enough "$VENV/bin/python"; then
        python="$(find_python)" || return 1
        say "Making $VENV with $python"
        "$python" -m venv --clear "$VENV"
    fi
    wanted="$(file_hash "$VENV/bin/python" "$LOCK" "$ROOT/pyproject.toml" "$ROOT/setup.py" \
        "$ROOT"/dvi/native/*.[ch])"
    if [ -f "$MARKER" ] && [ "$(cat "$MARKER")" = "$wanted" ]; then
        return 0
    fi
    say "Installing the locked packages: about 0.4 GB to download (0.2 GB of it torch; with CUDA"
    say "libraries, pip's default on Linux, 3 GB more: see README for the CPU build)."
    has_compiler || say "No C compiler: decode steps will take longer (Debian: apt install gcc)."
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r "$LOCK"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-deps --no-build-isolation -e "$ROOT"
    printf '%s' "$wanted" >"$MARKER"
}

has_compiler() {
    [ "$(uname -sm)" != "Linux x86_64" ] || command -v gcc >/dev/null 2>&1 \
        || command -v cc >/dev/null 2>&1
}

has_postgres() {
    [ -n "${DVI_POSTGRES_BIN:-}" ] || command -v initdb >/dev/null 2>&1 \
        || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

# The tests run a PostgreSQL server of their own, as an unprivileged user in a temporary folder.
# Without its programs they are skipped; who may install packages gets them once.
ensure_postgres() {
    has_postgres && return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "Installing PostgreSQL for the tests of the shared store (apt-get install postgresql)."
        install_postgres </dev/null >/dev/null 2>&1 || true
        has_postgres && return 0
    fi
    say "No PostgreSQL here: the tests of the shared store are skipped (Debian: apt install postgresql)."
}

# A package source that fails is no reason not to try the others. Only downloads have a time limit:
# an installation that is cut off leaves half of a package for the user to mend.
install_postgres() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60)
    timeout 120 "${apt[@]}" update || true
    timeout 240 "${apt[@]}" install -y --no-install-recommends --download-only postgresql &&
        "${apt[@]}" install -y --no-install-recommends postgresql
}
