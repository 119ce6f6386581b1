#!/usr/bin/env bash
# make_venv.sh FOLDER TORCH REQUIREMENTS PYTHON...   Creates the virtual environment FOLDER with the
# first PYTHON that works, unless it is there, and installs TORCH, unless a torch is there, the
# requirements, and the packages of requirements-models.txt beside them alone.
set -euo pipefail
folder=$1 torch=$2 requirements=$3
shift 3

find_python() {
  local name version root
  for name in "$@"; do
    if "$name" --version >/dev/null 2>&1; then
      command -v "$name"
      return
    fi
    # pyenv: the command may exist as a shim of a version that is not selected.
    root=$(pyenv root 2>/dev/null) || continue
    for version in "$root"/versions/"${name#python}".*/bin/python; do
      if [ -x "$version" ]; then
        echo "$version"
        return
      fi
    done
  done
  echo "none of these Pythons was found: $*. Please install one of them." >&2
  return 1
}

if [ ! -x "$folder/bin/python" ]; then
  python=$(find_python "$@")
  echo "creating $folder with $("$python" --version)"
  "$python" -m venv "$folder"
fi
# Without bytecode: most modules are never imported, and Python compiles the others itself.
pip=("$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile)
if ! "$folder/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
  echo "installing $torch in $folder"
  "${pip[@]}" "$torch" </dev/null
fi
"${pip[@]}" -r "$requirements" </dev/null
"${pip[@]}" --no-deps -r "$(dirname "$requirements")/requirements-models.txt" </dev/null
