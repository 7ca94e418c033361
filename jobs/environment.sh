# Sourced by the scripts that need an environment: make_environment FOLDER EXTRAS
# makes (or reuses) a virtual environment with the exact versions of constraints.txt.

make_environment() {
  local folder=$1 extras=$2 python stamp
  python=${PYTHON:-python3}
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "hpcsched needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Set PYTHON=..." >&2
    return 2
  fi
  stamp="$(cat pyproject.toml constraints.txt jobs/environment.sh | cksum) $extras"
  if [ -x "$folder/bin/python" ] && [ "$(cat "$folder/.hpcsched-stamp" 2>/dev/null)" = "$stamp" ]; then
    return 0
  fi
  [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
  echo "installing into $folder (a minute or two) ..." >&2
  # torch first and by its exact version: asked for loosely, pip would fetch gigabytes of a CUDA build
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$(grep '^torch==' constraints.txt)" -c constraints.txt
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extras]" -c constraints.txt
  echo "$stamp" >"$folder/.hpcsched-stamp"
}
