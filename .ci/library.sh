# .ci/library.sh -- what the steps of .ci/run share: each begins by reading this.
#
# A step runs in $root, a copy of the clone, with $work a folder for what it makes. .ci/run gives all
# of its steps one such folder, and so one copy and one environment; a step by itself has its own.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${CI_WORK:-}" ]; then
    work=$(mktemp -d "${TMPDIR:-/tmp}/attnext-ci.XXXXXX")
    trap 'rm -rf "$work"' EXIT
else
    work=$CI_WORK
fi
exec </dev/null
unset PYTHONPATH ATTNEXT_CPU ATTNEXT_NUM_THREADS

# Python compiles what it imports, and keeps that. pip would compile all that it installs: of the
# 16,000 files of the first environment, most of which nobody imports, that takes over a minute.
unset PYTHONDONTWRITEBYTECODE
export PIP_COMPILE=0

# The clone as git has it, without anything that was built in it.
copy_clone() { # DIRECTORY
    mkdir "$1"
    tar -C "$root" --exclude=./build --exclude=./dist --exclude='*.egg-info' --exclude='*.so' \
        --exclude=__pycache__ --exclude='./.*_cache' --exclude=.hypothesis -cf - . |
        tar -C "$1" -xf -
}

# The steps' own copy, where Python may keep what it has compiled of the tests: it takes seconds.
exec {lock}>"$work/root.lock"
flock "$lock"
[ -e "$work/root" ] || copy_clone "$work/root"
exec {lock}>&-
root=$work/root
cd "$root"
torch=$(grep -o 'torch==[0-9.]*' pyproject.toml)

# A command that succeeds where something is installed, and the Debian packages that install it:
# whether it is there then. One step at a time may ask apt-get.
has() { # CHECK PACKAGE...
    local check=$1 lock
    shift
    if eval "$check" >/dev/null 2>&1; then
        return
    fi
    echo "no success with: $check; installing $*"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        exec {lock}>"$work/apt.lock"
        flock "$lock"
        [ -e "$work/apt.updated" ] || apt-get update -qq || true
        touch "$work/apt.updated"
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" || true
        exec {lock}>&-
    fi
    eval "$check"
}

need() { # CHECK PACKAGE...
    if ! has "$@"; then
        echo "This step cannot run here: it needs ${*:2}, and apt-get did not install that."
        return 1
    fi
}

# What one step of a run has compiled no other compiles again: attnext is built in several
# environments, of the same files with the same flags. Where ccache cannot be had, they are.
if [ -n "${CI_WORK:-}" ] && has "command -v ccache" ccache; then
    export CCACHE_DIR=$work/ccache CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
    PATH=/usr/lib/ccache:$PATH # where gcc is ccache
fi

# README's commands are pip's. Everywhere else uv installs, with a tenth of the work (of '.[lab]' 9 s
# of the CPU, and 74) and of one cache: what it has unpacked is linked into each environment. It does not
# read pip's settings; where those name a folder of wheels, PyTorch without CUDA lies there.
UV_FIND_LINKS=${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}
export UV_CACHE_DIR=$work/uv-cache UV_FIND_LINKS UV_PYTHON_DOWNLOADS=never
uv() {
    local lock
    exec {lock}>"$work/uv.lock"
    flock "$lock"
    [ -x "$work/uv/bin/uv" ] || { python3 -m venv "$work/uv" && "$work/uv/bin/pip" install -q uv; }
    exec {lock}>&-
    "$work/uv/bin/uv" "$@"
}

# Into the environment that is first on the PATH.
install() { # PACKAGE-OR-OPTION...
    uv pip install -q --python "$(command -v python)" "$@"
}

# An environment that is first on the PATH from now on.
new_env() { # NAME PACKAGE-OR-OPTION...
    python3 -m venv --without-pip "$work/$1"
    PATH=$work/$1/bin:$PATH
    [ $# = 1 ] || install "${@:2}"
}

# The environment of the README's commands first on the PATH, with the tools of the steps; made
# here if the step readme did not run. One step at a time may make it.
test_env() {
    local lock
    exec {lock}>"$work/venv.lock"
    flock "$lock"
    if ! "$work/venv/bin/python" -P -c "import attnext, torch" 2>/dev/null; then
        python3 -m venv --clear "$work/venv"
        copy_clone "$work/test_env"
        uv pip install -q --python "$work/venv/bin/python" "$work/test_env[test]"
    fi
    PATH=$work/venv/bin:$PATH
    if [ ! -e "$work/venv/tools" ]; then
        install -r "$root/.ci/requirements.txt"
        touch "$work/venv/tools"
    fi
    exec {lock}>&-
}

# attnext of the clone as a wheel, built once: for environments that are there for what lies beside it. Of
# what is compiled the door is new for each, as the headers of NumPy have other names: 12 s of the CPU.
# What the compiler said is in $work/built.log, the objects are in $work/built-source.
wheel() { # its name
    local lock
    exec {lock}>"$work/built.lock"
    flock "$lock"
    if [ ! -e "$work/built" ]; then
        copy_clone "$work/built-source"
        uv build --wheel -o "$work/built.new" "$work/built-source" >"$work/built.log" 2>&1 ||
            { cat "$work/built.log" >&2 && return 1; }
        mv "$work/built.new" "$work/built"
    fi
    exec {lock}>&-
    echo "$work"/built/attnext-*.whl
}

# Another environment first on the PATH. What it does not have itself comes from the first.
side_env() { # NAME
    test_env
    python -m venv --without-pip "$work/$1"
    python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$("$work/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth"
    PATH=$work/$1/bin:$PATH
}

# -P: not the folder attnext/ of the clone but the installed package, also for `python -m`. One
# process, as another step has the other CPU.
run_pytest() {
    python -P -c 'import attnext; print("testing", attnext.__file__)'
    python -P -m pytest -x -p no:cacheprovider -n 0 "$@"
}

# The files of tests/ by what they are about: each is in one list, which test_packaging.py holds, so
# that what replaces a file runs wherever that did. A step takes lists, or names.
arguments="broadcast inputs inputs_masks inputs_messages options modules_options attacks"
masks="masks mask_rules rules"
modifiers="modifiers bias softcap sink scale dropout"
sizes="attention few_queries cosine regimes bits accuracy"
functions="goldens softmax merge scores_backward fuzz_door"
heads="multi_head multi_head_wide multi_head_reference multi_head_torch"
layers="modules modules_life multi_head_layer multi_head_kept"
memories="memory_data memory_parameters modules_memory"
finalisers="memory_finalisers attacks_finalisers attacks_hostile"
process="config threads memory_threads memory large_results workspace leaks attacks_memory
    attacks_process rare_lines"
elsewhere="reference reference_masks frameworks hints known_bugs_elsewhere testing dask
    kernel_regression positional_encoding reload"
compiled="adding_a_score core_c parallel_c simd_c web layers door"
of_torch="torch fuzz_torch torch_defaults torch_derivatives torch_editions torch_exceptions
    torch_exchange torch_functions torch_kept torch_layouts torch_masks torch_memory torch_modules
    torch_nn torch_overrides torch_parts torch_scores torch_sdpa torch_transformers torch_transforms
    torch_ways"
shown="explain explain_backward explain_labels explain_layers explain_memory explain_multi_head
    explain_show plot plot_shown tour tour_languages tour_plots tour_width lab lab_assignments
    lab_faults lab_checks view"
project="benchmarks benchmarks_beside benchmarks_ways chinese completion docs editable notebooks
    notebooks_chinese packaging refleaks signatures site files"

tests() { # NAME...: their files
    printf 'tests/test_%s.py\n' "$@"
}

# What a compiler is told to let the scalar kernels use this CPU's fused multiply-add. The C library's
# rounds as that does, and takes fifty times as long: minutes, where they are the specification.
fused() {
    if grep -qw fma /proc/cpuinfo 2>/dev/null; then
        echo -mfma
    fi
}

# Of clang what nobody runs: it warns of as much, and at -O0 zig would put in checks for undefined behaviour,
# which takes three times as long.
unused=(-O0 -fno-sanitize=undefined)

# Objects of these C files, two at a time, into the current directory. So many for each call of the compiler:
# ccache knows calls for one alone.
files=1
compile() { # FLAG... -- FILE...
    local flags=()
    while [ "$1" != -- ]; do
        flags+=("$1")
        shift
    done
    shift
    printf '%s\n' "$@" | xargs -d '\n' -P 2 -n "$files" "${flags[@]}" -c
}

# The program of the package ziglang; python -m ziglang is a Python beside each.
zig() {
    python -P -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).with_name("zig"))'
}

# The bits of so many random problems on this machine, as fuzz_main.c prints them: of the objects of the wheel,
# but for the scalar kernels.
problems=200
bits_here() {
    local lock built=$work/built-source/build
    wheel >/dev/null
    exec {lock}>"$work/here.lock"
    flock "$lock"
    if [ ! -e "$work/here/bits" ]; then
        mkdir -p "$work/here"
        (
            cd "$work/here"
            compile gcc -std=c11 -O3 $(fused) -- "$root"/csrc/simd/kernels_scalar.c
            gcc -pthread "$root"/tests/c/fuzz_{attention,main}.c ./*.o \
                "$built"/temp*/csrc/{{core,os}/*,simd/dispatch,simd/kernels_[!s]*}.o -lm -o fuzz
            ./fuzz "$problems" >computed
            mv computed bits
        )
    fi
    exec {lock}>&-
    cat "$work/here/bits"
}

# The core, compiled for another machine and run by what plays that machine here: every kernel beside
# the scalar one, large blocks of memory, and random problems, whose bits are those of this machine.
# A kernel that rounds twice there, for want of fused multiply-add, is within the bounds that
# test_kernels.c and fuzz_attention.c state; the scalar kernels never do, so the bits are compared.
# What can be wrong there alone is what a compiler and a machine make of the code, for which 500 cases
# of a kernel with all sizes and options among them are enough: this machine runs all of them.
elsewhere() { # PLAYER FLAGS-OF-THE-LINKER COMPILER...
    local player=$1 link kernel program
    local compiler=("${@:3}" -std=c11 -Wall -Wextra -Werror -O2)
    read -ra link <<<"-lm $2"
    mkdir "$work/$player"
    cd "$work/$player"
    compile "${compiler[@]}" -- "$root"/csrc/{core,os,simd}/*.c
    for program in kernels memory core view kv_cache; do
        "${compiler[@]}" "$root/tests/c/test_$program.c" ./*.o* "${link[@]}" -o "test_$program"
    done
    "${compiler[@]}" "$root"/tests/c/fuzz_{attention,main}.c ./*.o* "${link[@]}" -o fuzz
    for kernel in $("$player" ./test_kernels); do
        echo "$kernel"
        "$player" ./test_kernels "$kernel" 500
    done
    "$player" ./test_kernels accuracy 50000
    for program in memory view kv_cache; do
        "$player" "./test_$program"
    done
    for program in backward_memory prepared_memory overflow; do # sizes, as this machine counts them
        "$player" ./test_core "$program"
    done
    "$player" ./fuzz "$problems" | tee bits
    bits_here | diff bits -
    echo "the same bits as on $(uname -m)"
}

# The instruction sets of this CPU, the widest last.
instruction_sets() {
    "$work/venv/bin/python" -P -c \
        'import attnext; print(*attnext.show_config("dicts")["instruction_set"]["available"])'
}

# A compiler that takes these flags behind attnext's own. The kernels of other instruction sets than
# SETS, a pattern, are built without: with sanitizers the four take minutes to compile, and only the
# widest of this CPU runs. Those ccache has.
compiler_with() { # NAME SETS FLAG...
    local name=$1 sets=$2
    shift 2
    [ "$sets" != widest ] || sets=$(instruction_sets | grep -o '[^ ]*$')
    cat >"$work/$name-cc" <<END
#!/bin/sh
case "\$*" in
*" -c csrc/simd/kernels_scalar.c "*) set -- "\$@" $(fused) ;;
esac
case "\$*" in
*" -c csrc/simd/kernels_"$sets".c "*) ;;
*" -c csrc/simd/kernels_"*) unset CCACHE_DISABLE; exec gcc "\$@" ;;
esac
exec gcc "\$@" $*
END
    chmod +x "$work/$name-cc"
    echo "$work/$name-cc"
}

# A compiler that hears what a Python says to it for what includes Python.h alone. The core knows no Python:
# as the first one had it compiled, it is there for all others.
compiler_of_the_door() { # NAME
    local first
    first=$(python3 -P -c 'import sysconfig; print(*map(sysconfig.get_config_var, ("CFLAGS", "CCSHARED")))')
    cat >"$work/$1-cc" <<END
#!/bin/sh
case "\$*" in
*" -c csrc/python/"* | *" -c csrc/tensors/"*) exec gcc "\$@" -O0 ;;
*" -c "*)
    while [ "\$1" != -c ]; do shift; done
    exec gcc $first "\$@"
    ;;
*) exec gcc "\$@" ;;
esac
END
    chmod +x "$work/$1-cc"
    echo "$work/$1-cc"
}

# attnext beside the newest NumPy and what its tests need without PyTorch, in $work/NAME; an older one
# of these where the newest has no wheel for that Python.
made_for() { # NAME PYTHON
    "$2" -m venv --without-pip "$work/$1"
    uv pip install -q --python "$work/$1/bin/python" --only-binary numpy --only-binary hypothesis \
        numpy pytest pytest-xdist hypothesis 'setuptools>=77'
    copy_clone "$work/$1-source"
    CC=$(compiler_of_the_door "$1") uv pip install -q --python "$work/$1/bin/python" \
        --no-build-isolation --no-deps "$work/$1-source"
    "$work/$1/bin/python" -P -c 'import sys, numpy; print("CPython", sys.version, "numpy", numpy.__version__)'
}

# Builds attnext with that compiler into an environment of its own.
instrumented() { # NAME SETS FLAG...
    side_env "$1"
    copy_clone "$work/$1-source"
    cd "$work/$1-source"
    CC=$(compiler_with "$@") install --no-build-isolation --no-deps .
}
