#!/usr/bin/env bash
# Set up what a make target needs, once: scripts/setup.sh runtime|dev|browser
#   runtime   .venv with watersmeet (editable) and the libraries it runs on
#   dev       the same and the tools that lint, type-check and test
#   browser   a Chromium that can be started; says so when there is none and none can be installed
# Versions are those of constraints.txt. A second call with nothing changed does nothing.
# Variables: PYTHON (interpreter, 3.11 or newer), VENV (folder, default .venv), WATERSMEET_CHROMIUM (path of a browser).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

say() { printf '%s\n' "$*" >&2; }
fail() { say "setup: $*"; exit 1; }

new_enough() { "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    new_enough "$PYTHON" || fail "PYTHON is '$PYTHON', which is no Python 3.11 or newer with the module venv"
    printf '%s' "$PYTHON"
    return
  fi
  local name
  for name in python3 python3.11 python3.12 python3.13 python; do
    if new_enough "$name"; then printf '%s' "$name"; return; fi
  done
  fail "no Python 3.11 or newer with the module venv was found; install one, or set PYTHON to its path"
}

# one writer at a time: two make commands may start together
lock() {
  mkdir -p "$venv"
  if command -v flock >/dev/null; then exec 9>"$venv/.lock"; flock 9; fi
}

# what an environment was built from, so that a touched but unchanged file does not reinstall
print_of() { { echo "$1"; cat pyproject.toml setup.cfg constraints.txt scripts/setup.sh; } | cksum; }

install() {
  local what=$1 target=. stamp="$venv/.installed-$1"
  [ "$what" = dev ] && target='.[dev]'
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(print_of "$what")" ]; then return; fi
  lock
  if [ ! -x "$venv/bin/python" ]; then
    local python
    python=$(find_python)
    say "setup: making $venv with $("$python" --version)"
    "$python" -m venv "$venv" || fail "$python cannot make a virtual environment in $venv"
  fi
  say "setup: installing watersmeet ($what), pinned by constraints.txt"
  # python compiles what is imported on first use; compiling everything now would double the time
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq --no-compile -c constraints.txt)
  # the build backend comes from the same pins; without isolation pip would fetch another one for the build alone
  "${pip[@]}" setuptools || fail "pip could not install setuptools; is a package index reachable?"
  "${pip[@]}" --no-build-isolation -e "$target" || fail "pip could not install the pinned libraries; its reason is above"
  print_of "$what" >"$stamp"
  if [ "$what" = dev ]; then print_of runtime >"$venv/.installed-runtime"; fi
}

# the package knows the order in which browsers are looked for; asking it keeps that order in one place
found_browser() {
  "$venv/bin/python" -c 'from watersmeet.pipelines.browser.find import find_chromium; print(find_chromium())' 2>&1 |
    tail -n 1 | sed 's/^[A-Za-z_.]*Error: //'
  return "${PIPESTATUS[0]}"
}

browser() {
  install runtime
  local answer
  if answer=$(found_browser); then return; fi
  if [ -n "${WATERSMEET_CHROMIUM:-}" ]; then fail "$answer"; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "setup: no Chromium found, installing the system's"
    # the fonts are those that generated pages name; without them text is measured in another font than it is drawn in
    { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
      chromium fonts-liberation fonts-dejavu-core; } >"$venv/apt.log" 2>&1 ||
      fail "apt-get could not install chromium ($(tail -n 1 "$venv/apt.log")); install a Chromium or set WATERSMEET_CHROMIUM"
    if answer=$(found_browser); then return; fi
  fi
  fail "$answer"
}

case "${1:-}" in
  runtime | dev) install "$1" ;;
  browser) browser ;;
  *) fail "usage: scripts/setup.sh runtime|dev|browser" ;;
esac
