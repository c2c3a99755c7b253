#!/usr/bin/env bash
# Both fuzzers for OSS-Fuzz, each with its seeds, in $OUT; the compilers and their flags are its own.
set -euo pipefail

flags=(-std=c11 -ffp-contract=off -pthread -DATTN_LARGE=256)

# the C interface: seeds are lines of hexadecimal digits
objects=$(mktemp -d)
(
    cd "$objects"
    # shellcheck disable=SC2086
    "$CC" $CFLAGS "${flags[@]}" -c "$SRC"/attnext/csrc/{core,os,simd}/*.c \
        "$SRC"/attnext/tests/c/fuzz_attention.c
    # shellcheck disable=SC2086
    "$CXX" $CXXFLAGS -pthread ./*.o "$LIB_FUZZING_ENGINE" -lm -o "$OUT/fuzz_attention"
    mkdir seeds
    number=0
    while read -r digits; do
        number=$((number + 1))
        # shellcheck disable=SC2001
        printf "$(sed 's/../\\x&/g' <<<"$digits")" >"seeds/$number"
    done <"$SRC/attnext/tests/fuzz/core.hex"
    zip -q -j "$OUT/fuzz_attention_seed_corpus.zip" seeds/*
)

# the Python interface, with assertions
CFLAGS="$CFLAGS ${flags[*]} -UNDEBUG" python3 -m pip install .
cp tests/fuzz/door.dict "$OUT/fuzz_door.dict"
zip -q -j "$OUT/fuzz_door_seed_corpus.zip" tests/fuzz/door/*
compile_python_fuzzer tests/fuzz_door.py
