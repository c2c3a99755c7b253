"""Build the one extension module, attnext._core; everything else is in pyproject.toml."""

import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

# Without -g, which CPython's own flags ask for, the build takes half the time and the module
# an eighth of the space. CFLAGS=-g in the environment keeps it.
debug = [] if "-g" in os.environ.get("CFLAGS", "") else ["-g0"]

# Under -std=c11 gcc may compute floats in double there, which would give other bits.
narrow = ["-fexcess-precision=fast"] if platform.machine() == "s390x" else []

WINDOWS = sys.platform == "win32"

X86_64 = platform.machine().lower() in ("x86_64", "amd64")

# Options that change results, or the float mode of the whole process (crtfastmath.o). The
# environment (CC, CFLAGS, CPPFLAGS, LDFLAGS) and Python's own build may have them. Instruction
# sets are chosen when attnext is imported, so a build has nothing to gain from -march, and with
# -mfma the generic kernels have other bits.
FORBIDDEN = re.compile(
    r"-Ofast|-f(fast-math|unsafe-math-optimizations|finite-math-only|associative-math"
    r"|reciprocal-math|approx-func|single-precision-constant|no-signed-zeros|no-honor-\w+"
    r"|no-trapping-math|fp-contract=(fast|on).*|fp-model=.*"
    r"|denormal-fp-math.*|fp-eval-method=.*)|-m(recip.*|daz-ftz)"
    + (r"|-m(arch=.*|fpmath=.*|fma4?|avx.*|no-sse.*|no-mmx|soft-float)" if X86_64 else "")
)

# The same again behind all other options, for compilers that are scripts and add theirs.
SAFE_LINK = ["-fno-fast-math", "-fno-unsafe-math-optimizations"]
SAFE = [
    *SAFE_LINK,
    "-fno-finite-math-only",
    "-fno-associative-math",
    "-fno-reciprocal-math",
    "-fsigned-zeros",
    "-ffp-contract=off",
    *(["-mfpmath=sse", "-mno-fma"] if X86_64 and sys.platform == "linux" else []),
]

# What setuptools does not know of a compiler that is not Microsoft's, and what only POSIX has.
windows = [("MS_WIN64", None)] if WINDOWS else []
posix = [] if WINDOWS else ["-pthread"]

core = Extension(
    "attnext._core",
    sources=[  # csrc/simd, which takes longest, first; csrc/web is the door to pages
        file
        for drawer in ("simd", "python", "tensors", "os", "core")
        for file in sorted(glob(f"csrc/{drawer}/*.c"))
    ],
    depends=sorted(glob("csrc/*/*.h") + glob("csrc/*/*.def")),
    include_dirs=[np.get_include()],
    # Built with NumPy 2, the module runs with every NumPy from this one on.
    define_macros=[
        ("NPY_NO_DEPRECATED_API", "NPY_1_23_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_1_23_API_VERSION"),
        *windows,
    ],
    extra_compile_args=[
        "-std=c11",
        "-O3",
        *SAFE,
        "-fno-math-errno",  # behind -fno-fast-math, which turns it on
        "-fvisibility=hidden",
        "-Wframe-larger-than=16384",  # SECURITY.md promises work on a stack of 64 KiB
        # A function at the start of a cache line: small calls take 7 to 14 % less time than where
        # the linker happens to put them, and no longer depend on what else was compiled.
        "-falign-functions=64",
        *posix,
        *debug,
        *narrow,
    ],
    libraries=["m"],
    extra_link_args=[*posix, *SAFE_LINK],
)


def check_tools(compiler):
    """A sentence, where nothing can be compiled, instead of the traceback of the one who tried."""
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    needed = {
        f"the C compiler {compiler}": shutil.which(compiler),
        f"Python's header {header}": os.path.exists(header),
    }
    missing = " and ".join(name for name, found in needed.items() if not found)
    if missing:
        sys.exit(
            f"attnext is written in C, and {missing} is not here: install gcc or clang, by "
            "`apt-get install gcc python3-dev` on Debian and Ubuntu, "
            "`dnf install gcc python3-devel` on Fedora, `xcode-select --install` on macOS, "
            "`conda install -c conda-forge c-compiler` in conda."
        )


def without_forbidden(compiler):
    """Remove the options that FORBIDDEN names from the compiler's commands; return them."""
    removed = set()
    for name in ("compiler", "compiler_so", "linker_so", "linker_exe"):
        command = getattr(compiler, name, None) or []
        found = [word for word in command if FORBIDDEN.fullmatch(word)]
        removed.update(found)
        setattr(compiler, name, [word for word in command if word not in found])
    return sorted(removed)


def compiler_for_windows():
    """The command: clang, as the package ziglang has it.

    Microsoft's compiler has no vectors as GNU C has them, and gcc for Windows leaves AVX's
    misaligned on the stack. Without -target zig would compile for the CPU of this machine.
    """
    if sysconfig.get_platform() != "win-amd64":
        sys.exit("attnext on Windows is for x86-64 alone: install it in WSL, Windows' Linux.")
    if find_spec("ziglang") is None:
        sys.exit("attnext is written in C, and on Windows compiled by: pip install ziglang")
    return f'"{sys.executable}" -m ziglang cc -target x86_64-windows-gnu'


class Kept:
    """The objects of an editable install, in build/editable: those that nothing touched stay.

    Each has beside it the list of the files it was made of, which the compiler wrote (-MD); its
    time is that of its compilation's beginning. Another command or compiler makes all anew.
    """

    folder = Path("build", "editable")

    def __init__(self, compiler, options):
        version = subprocess.run([*compiler.compiler, "--version"], capture_output=True).stdout
        said = repr((compiler.compiler_so, {**options, "output_dir": None}, version))
        command = self.folder / "command"
        if not command.exists() or command.read_text(encoding="utf-8") != said:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            command.write_text(said, encoding="utf-8")
        self.compiler = compiler

    def is_current(self, object_file):
        try:
            _, _, rule = object_file.with_suffix(".d").read_text(encoding="utf-8").partition(": ")
            made_of = re.findall(r"(?:[^\\\s]|\\[^\n])+", rule)  # a space in a name has a backslash
            newest = max(os.path.getmtime(name.replace("\\ ", " ")) for name in made_of)
            return newest < object_file.stat().st_mtime
        except (OSError, ValueError):  # one of them is not there: a new file, a header that left
            return False

    def compile(self, file, compile_files, options):
        """The names of the file's objects, compiled if they have to be."""
        (name,) = self.compiler.object_filenames([file], output_dir=str(self.folder))
        if not self.is_current(Path(name)):
            began = time.time()  # what is saved while this compiles is newer
            options = {**options, "output_dir": str(self.folder)}
            options["extra_postargs"] = [*(options["extra_postargs"] or ()), "-MD"]
            compile_files([file], **options)
            os.utime(name, (began, began))
        return [name]


class build_files(build_ext):
    """Compiles an extension's files side by side: build_ext itself can do so to extensions only.

    For an editable install it compiles those alone that have changed since, or whose headers have.
    """

    def finalize_options(self):
        super().finalize_options()
        if WINDOWS and self.compiler is None:
            self.compiler = "mingw32"  # setuptools' word for what takes a Unix compiler's options
            if "CC" not in os.environ:
                os.environ["CC"] = compiler_for_windows()

    def run(self):
        super().run()
        if not self.inplace:
            self.join_docstrings()

    def join_docstrings(self):
        """Once, for every import; a module that cannot run here joins them itself, at each."""
        package = Path(self.build_lib, "attnext").resolve()
        (package / "_docs" / "joined").unlink(missing_ok=True)
        code = f"import attnext._docs as docs; docs.write({str(package)!r})"
        # With what this process finds: pip's place for NumPy, while it builds, is no other's.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path]),
        }
        command = [sys.executable, "-B", "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
        if done.returncode:
            self.warn(f"docstrings are joined at each import:\n{done.stderr}")

    def build_extension(self, ext):
        check_tools(self.compiler.compiler[0])
        if removed := without_forbidden(self.compiler):
            self.warn(
                f"built without {' '.join(removed)}: attnext gives the same results on every "
                "machine, and these compiler options change them"
            )
        compile_files = self.compiler.compile

        def compile_each(sources, **options):
            kept = Kept(self.compiler, options) if self.editable_mode else None

            def compile_one(file):
                if kept is None:
                    return compile_files([file], **options)
                return kept.compile(file, compile_files, options)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [name for names in pool.map(compile_one, sources) for name in names]

        self.compiler.compile = compile_each
        super().build_extension(ext)


class build_notebooks(build_py):
    """Puts the notebooks into the package, without their outputs: `attnext lab` writes them out."""

    def run(self):
        super().run()
        for path in (
            () if self.editable_mode else sorted(glob("examples/**/*.ipynb", recursive=True))
        ):
            with open(path, encoding="utf-8") as file:
                notebook = json.load(file)
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell |= {"outputs": [], "execution_count": None}
            target = os.path.join(
                self.build_lib, "attnext", "data", "notebooks", os.path.relpath(path, "examples")
            )
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8") as file:
                json.dump(notebook, file, ensure_ascii=False)


class sdist_of_one_date(sdist):
    """Packs the sdist so that the same files are the same bytes, whoever has them, and where.

    All has the date SOURCE_DATE_EPOCH, as in a wheel, where setuptools takes that of each file and,
    for the compressed whole, the time of day.
    """

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **owners):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, **owners)
        date = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def plain(member):
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = date
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=date) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            tar.add(base_dir, filter=plain)  # which goes through folders in order of names
        return name


setup(
    ext_modules=[core],
    cmdclass={
        "build_ext": build_files,
        "build_py": build_notebooks,
        "sdist": sdist_of_one_date,
    },
)
