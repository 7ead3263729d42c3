#!/usr/bin/env bash
# test-wheel.sh installs a wheel for each CPython from 3.11 to 3.13 that is here, in PATH or in pyenv, and runs the
# script of python/README.md and the tests of the client with it. TOOLS is a directory with auditwheel and twine.
#
#   TOOLS=DIR scripts/test-wheel.sh WHEEL
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# auditwheel names the oldest tag whose glibc has all symbols: the wheel's is the same or newer.
tag=$(basename "$wheel" .whl | sed 's/.*py3-none-//')
oldest=$("$TOOLS/auditwheel" show "$wheel" | tr '\n' ' ' | sed -n 's/.*following platform tag: "\([^"]*\)".*/\1/p')
if [ "$(printf '%s\n' "$oldest" "$tag" | sort -V | head -1)" != "$oldest" ] || [[ $oldest != manylinux_* ]]; then
	echo "test-wheel.sh: the tag is $tag, and auditwheel says ${oldest:-nothing}" >&2
	exit 1
fi
echo "auditwheel: $tag is accepted, the oldest is $oldest"
"$TOOLS/twine" check --strict "$wheel"

# The version of python/rowraft/_version.py is in the name, the module, the library and the program.
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' python/rowraft/_version.py)
case $wheel in *"/rowraft-$version-py3-none-"*) ;; *) echo "test-wheel.sh: $wheel is not of $version" >&2; exit 1 ;; esac

# The first block of the README.
sed -n '/^```python$/,/^```$/p' python/README.md | sed '1d;/^```$/,$d' >"$work/readme.py"

tested=0
for minor in 11 12 13; do
	python=
	for p in "/usr/bin/python3.$minor" "$(command -v "python3.$minor" || true)" ~/.pyenv/versions/"3.$minor".*/bin/python3; do
		if [ -x "$p" ] && "$p" -c 'import ensurepip' 2>/dev/null; then python=$p; break; fi
	done
	if [ -z "$python" ]; then echo "cp3$minor: skipped: there is no Python 3.$minor"; continue; fi
	env=$work/cp3$minor
	"$python" -m venv "$env"
	"$env/bin/pip" install -q --disable-pip-version-check "$wheel" pytest
	cat >"$work/version.py" <<-EOF
		import importlib.metadata, subprocess, rowraft
		from rowraft import _lib
		assert rowraft.__file__.startswith("$env/"), rowraft.__file__
		assert rowraft.__version__ == importlib.metadata.version("rowraft") == "$version"
		assert _lib.call("runtime")["version"].startswith("$version+"), _lib.call("runtime")
		told = subprocess.check_output([_lib.find("rowraft", ""), "version"], text=True)
		assert told.startswith("rowraft $version+"), told
	EOF
	env -u PYTHONPATH -u ROWRAFT_LIBRARY -u ROWRAFT_BINARY bash -euc "
		cd '$work'
		'$env/bin/python' version.py
		'$env/bin/python' readme.py >/dev/null
		PYTHONDONTWRITEBYTECODE=1 '$env/bin/pytest' -q -p no:cacheprovider '$PWD/python/tests/test_client.py' \
			'$PWD/python/tests/test_processes.py'"
	echo "cp3$minor: $("$env/bin/python" -VV)"
	tested=$((tested + 1))
done
[ "$tested" -gt 0 ]
