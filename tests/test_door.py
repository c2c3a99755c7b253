"""Between the first look at an argument and the end of the core no Python code runs in csrc/python.

The gate is py_make_plain (py_read.c): it alone may run code, and what stands behind it may not, nor
start the collector, until the core is done. Here every call behind the gate is followed through the
text of csrc/python to the functions of CPython and NumPy that it ends in, and those are all on a
list: of what reads and counts, allocates what the collector does not know, or raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import REPOSITORY

from attnext import _wrong

GATES = {"py_make_plain", "py_read_call"}
# What calls the core, and what only such functions call: all of it is behind the gate.
CORE = {"py_read_call", "py_attend", "py_run"}
# What is not plain, and behind the gate all is; a weak reference, called for what it refers to.
AS_THEY_ARE = {"py_read_real", "layer_memory_layer"}
# What words a message asks Python for it; nothing is looked at after that.
RAISES = {"py_wrong", "py_dims", "py_repr", "py_shape_error", "py_type_name", "py_notice_swapped"}
RAISES |= {"PyErr_Clear", "PyErr_Format", "PyErr_NoMemory", "PyErr_Occurred", "PyErr_SetString"}
RAISES |= {"Py_FatalError"}  # of a build with assertions, where the end is not quiet

ALLOWED = {
    # counts and looks
    *"Py_CLEAR Py_DECREF Py_INCREF Py_NewRef Py_SETREF Py_XDECREF Py_XNewRef Py_XSETREF".split(),
    *"Py_IS_TYPE Py_MAX Py_MIN Py_TYPE Py_UNUSED Py_ARRAY_LENGTH".split(),
    *"Py_BEGIN_CRITICAL_SECTION Py_END_CRITICAL_SECTION".split(),
    *"PyBool_Check PyFloat_AS_DOUBLE PyFloat_AsDouble PyFloat_Check".split(),
    *"PyList_CheckExact PyList_GET_ITEM PyList_GET_SIZE PyTuple_CheckExact".split(),
    *"PyArray_ISBYTESWAPPED PyList_Check PyOS_snprintf PyTuple_Check Py_REFCNT Py_XINCREF".split(),
    *"PyTuple_GET_ITEM PyTuple_GET_SIZE PySequence_Fast_GET_ITEM PySequence_Fast_ITEMS".split(),
    *"PySequence_Fast_GET_SIZE PyUnicode_Check PyUnicode_CompareWithASCIIString".split(),
    *"PyLong_AsDouble PyLong_AsLongLongAndOverflow PyLong_Check PyLong_CheckExact".split(),
    # ... of an exact int, whose own methods these are
    *"PyLong_AsUnsignedLongLong PyNumber_AsSsize_t".split(),
    # arrays: what NumPy's macros read; new ones of numbers, which the collector does not know
    *"PyArrayScalar_New PyArrayScalar_VAL PyArray_BASE PyArray_BYTES".split(),
    *"PyArray_CHKFLAGS PyArray_Check".split(),
    *"PyArray_CheckExact PyArray_CompareLists PyArray_DATA PyArray_DESCR PyArray_DIM".split(),
    *"PyArray_DIMS PyArray_ENABLEFLAGS PyArray_FLAGS PyArray_ISBOOL PyArray_ISCARRAY".split(),
    *"PyArray_ISCARRAY_RO PyArray_ISUNSIGNED PyArray_ISWRITEABLE PyArray_ITEMSIZE".split(),
    *"PyArray_IsScalar PyArray_MultiplyList PyArray_NBYTES PyArray_NDIM PyArray_SIZE".split(),
    *"PyArray_OverflowMultiplyList PyArray_STRIDE PyArray_STRIDES PyArray_TYPE".split(),
    *"PyTypeNum_ISBOOL PyTypeNum_ISFLOAT PyTypeNum_ISINTEGER".split(),
    *"PyArray_DescrFromType PyArray_FromArray PyArray_New PyArray_NewCopy".split(),
    *"PyArray_ISALIGNED PyArray_IS_C_CONTIGUOUS PyArray_NewLikeArray PyArray_Newshape".split(),
    *"PyArray_SwapAxes PyArray_NewFromDescr PyArray_ISBEHAVED_RO".split(),
    *"PyArray_Repeat PyArray_SetBaseObject PyArray_SimpleNew".split(),
    *"PyArray_CopyInto PyLong_FromLongLong".split(),
    *"PyCapsule_New PyDataMem_GetHandler PyTraceMalloc_Track".split(),
    *"PyMem_Free PyMem_New PyMem_Calloc PyMem_RawFree PyMem_RawMalloc".split(),
    "PyModule_GetState",
    # py_run.c: the GIL is given up, and Ctrl-C may run a handler, with the collector off
    *"PyEval_RestoreThread PyEval_SaveThread PyErr_CheckSignals PyGC_Disable PyGC_Enable".split(),
}

FUNCTION = re.compile(
    r"^(?:\w[\w *()]*\n)?(\w+)(\([^;{}]*\))\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
CALL_OF_PYTHON = re.compile(r"\b(_?Py[A-Za-z]*_\w+|tp_\w+)\s*\(")


class Function(NamedTuple):
    file: str
    name: str
    parameters: str
    body: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def code_of(file: Path) -> str:
    """The text without comments, strings and macros."""
    text = re.sub(r"/\*.*?\*/", " ", file.read_text(), flags=re.DOTALL)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"^\s*#.*(?:\\\n.*)*", "", text, flags=re.MULTILINE)


class Door:
    """The functions of csrc/python and csrc/tensors, and who calls whom."""

    def __init__(self, files: dict[str, str]) -> None:
        self.functions: dict[str, list[Function]] = {}
        self.bodies: set[str] = set()  # of functions, which the gate calls
        for file, text in files.items():
            self.bodies.update(re.findall(r"^PY_EXPOSED\(\w+, (\w+)\b", text, re.MULTILINE))
            for name, parameters, body in FUNCTION.findall(text):
                function = Function(file, name, parameters, body)
                self.functions.setdefault(name, []).append(function)

    def called(self, name: str, function: Function) -> list[Function]:
        """Those of that name that this one may mean: of its own file, or of any other."""
        found = self.functions.get(name, [])
        return [one for one in found if one.file == function.file] or found

    def calls(self, function: Function, body: str) -> Iterator[Function]:
        """What is called there, or handed on to be called; a variable is no function."""
        for name in set(re.findall(r"(?<![.>\w])([a-z]\w*)\b", body)) & self.functions.keys():
            is_called = re.search(rf"(?<![.>\w]){name}\s*\(", body)
            variable = rf"(?:\w|\*)\s+\**{name}\s*[,;=)\[]|\*{name}\b"
            if is_called or not re.search(variable, function.parameters + body):
                yield from self.called(name, function)

    def behind_the_gate(self) -> Iterator[tuple[Function, str]]:
        """Functions and what of them is behind it: all, or what follows the last gate."""
        for same in self.functions.values():
            for function in same:
                if function.name in CORE:
                    yield function, function.body
                elif function.name in self.bodies and self.leads_to_the_core(function):
                    body = function.body.split("\ndone:")[0]
                    yield function, self.until_the_core(function, body)
                elif function.name not in GATES and self.has_gate(function):
                    gates = re.compile("|".join(rf"\b{gate}\s*\(" for gate in GATES))
                    rest = function.body[list(gates.finditer(function.body))[-1].end() :]
                    yield function, self.until_the_core(function, rest.split("\ndone:")[0])

    def until_the_core(self, function: Function, body: str) -> str:
        """What stands before the first call that leads there, and that call."""
        for match in re.finditer(r"(?<![.>\w])(\w+)\s*\(", body):
            if any(map(self.leads_to_the_core, self.called(match[1], function))):
                return body[: match.end()]
        return body

    @cache  # noqa: B019
    def leads_to_the_core(self, function: Function) -> bool:
        return function.name in CORE or any(
            map(self.leads_to_the_core, self.calls(function, function.body))
        )

    @staticmethod
    def has_gate(function: Function) -> bool:
        return any(re.search(rf"\b{gate}\s*\(", function.body) for gate in GATES)

    def forbidden(self) -> dict[str, str]:
        """Functions that may run Python, and the way to them from the gate."""
        found: dict[str, str] = {}
        todo = [(function, body, str(function)) for function, body in self.behind_the_gate()]
        seen = set()
        while todo:
            function, body, way = todo.pop()
            for name in CALL_OF_PYTHON.findall(body):
                if name not in ALLOWED | RAISES:
                    found[name] = way
            for callee in self.calls(function, body):
                if callee not in seen and callee.name not in RAISES | GATES | AS_THEY_ARE:
                    seen.add(callee)
                    if not self.has_gate(callee):  # else it reads anew
                        todo.append((callee, callee.body, f"{way} > {callee}"))
        assert len(seen) > 80
        return found


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    drawers = "python", "tensors"
    found = [file for name in drawers for file in REPOSITORY.glob(f"csrc/{name}/*.[ch]")]
    return {file.name: code_of(file) for file in found}


def test_nothing_behind_the_gate_runs_python(files: dict[str, str]) -> None:
    assert Door(files).forbidden() == {}


@pytest.mark.parametrize(
    ("file", "before", "fault"),
    [
        ("py_softmax.c", "const double size", "PyObject_Repr(given[ARG_X]);\n    "),
        ("py_call.c", "const py_made *to = ", "PyTuple_New(3);\n    "),
        ("py_results.c", "return ", "PyObject_CallNoArgs(NULL);\n    "),
        ("py_run.c", "heap = py_take_scratch", "PyImport_ImportModule(name);\n    "),
    ],
)
def test_a_call_that_may_is_found(
    files: dict[str, str], file: str, before: str, fault: str
) -> None:
    assert before in files[file]
    wrong = files | {file: files[file].replace(before, fault + before)}
    (name,) = CALL_OF_PYTHON.findall(fault)
    assert Door(wrong).forbidden().keys() == {name}


def test_everything_that_is_wrong_has_words() -> None:
    """What C raises by its name is there: functions of _wrong.py, and its sentences."""
    text = "".join(file.read_text() for file in REPOSITORY.glob("csrc/*/*.c"))
    named = set(re.findall(r'py_wrong\(\s*"(\w+)"', text))
    sentences = re.findall(r'py_wrong\(\s*"sentence",\s*"\(s\)",\s*"(\w+)"', text)
    assert len(named) > 15 and not [name for name in named if not hasattr(_wrong, name)]
    assert set(sentences) == set(_wrong._SENTENCES)


def test_nothing_leaves_a_critical_section_but_by_its_end(files: dict[str, str]) -> None:
    """With a GIL its ends are braces, and a return in it is no fault that any other test finds."""
    sections = 0
    for function in (f for same in Door(files).functions.values() for f in same):
        first, *rest = function.body.split("Py_BEGIN_CRITICAL_SECTION(")
        assert "Py_END_CRITICAL_SECTION" not in first, function
        for section in rest:
            inside, *after = section.split("Py_END_CRITICAL_SECTION()")
            assert len(after) == 1, function
            assert not re.search(r"\b(return|goto)\b", inside), function
            sections += 1
    assert sections > 10
