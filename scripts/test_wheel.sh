#!/usr/bin/env bash
# Build sdist and wheel, install the wheel into an environment of its own, and run the suite against it.
# The libraries are those of the development environment, reached through a .pth file: what is tested is the package,
# not another download. Files named in such a file's folder are not followed, so the editable install stays out.
# Usage: scripts/test_wheel.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
fresh=$PWD/.venv-wheel
python=$venv/bin/python

rm -rf build dist "$fresh"
"$python" -m build --no-isolation --outdir dist . >/dev/null
wheel=$(ls dist/*.whl)
"$python" -m venv --without-pip "$fresh"
site=$("$fresh/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/zz_libraries.pth"
"$python" -m pip --disable-pip-version-check --python "$fresh/bin/python" install -qq --no-deps --force-reinstall "$wheel"
"$fresh/bin/python" -P - <<'CHECK'
import pathlib, sys, watersmeet.core
where = pathlib.Path(watersmeet.core.__file__)
if pathlib.Path(sys.prefix) not in where.parents:
    sys.exit(f"the suite would test {where}, not the wheel")
CHECK
echo "testing $wheel"
WATERSMEET_TESTED=wheel "$fresh/bin/python" -P -m pytest -q -m "not slow" -p no:cacheprovider "$@"
