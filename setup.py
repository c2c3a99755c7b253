"""Build the one extension module, attnext._core; everything else is in pyproject.toml."""

import os
from glob import glob

import numpy as np
from setuptools import Extension, setup

# Without -g, which CPython's own flags ask for, the build takes half the time and the module
# an eighth of the space. CFLAGS=-g in the environment keeps it.
debug = [] if "-g" in os.environ.get("CFLAGS", "") else ["-g0"]

core = Extension(
    "attnext._core",
    sources=sorted(glob("csrc/*/*.c")),
    depends=sorted(glob("csrc/*/*.h")),
    include_dirs=[np.get_include()],
    define_macros=[
        ("NPY_NO_DEPRECATED_API", "NPY_1_25_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_1_25_API_VERSION"),
    ],
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=off",
        "-fvisibility=hidden",
        "-pthread",
        *debug,
    ],
    libraries=["m"],
    extra_link_args=["-pthread"],
)

setup(ext_modules=[core])
