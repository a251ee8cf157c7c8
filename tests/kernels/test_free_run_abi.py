"""The structures of the C++ source, as its text declares them, and those that Python fills."""

import ctypes
import re
from pathlib import Path

import pytest

from profforce.kernels import free_run_abi as abi

FOLDER = Path(abi.__file__).parent
SCALARS = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
}
STRUCTURES = {
    name: made
    for name, made in vars(abi).items()
    if isinstance(made, type) and issubclass(made, ctypes.Structure)
}


def declared(name: str) -> list[tuple[str, type]]:
    """Fields of ``struct NAME`` in the C++ source, in order."""
    text = "".join((FOLDER / file).read_text() for file in ("packed.h", "free_run.cpp"))
    body = re.search(rf"\bstruct {name} \{{(.*?)\}};", re.sub(r"//.*", "", text), re.DOTALL)
    assert body is not None
    fields = []
    for line in filter(None, map(str.strip, body[1].split(";"))):
        function = re.match(r"void \(\*(\w+)\)", line)
        if function:
            fields.append((function[1], ctypes.c_void_p))
            continue
        kind, names = re.fullmatch(r"(?:const )?(\w+)\b(.*)", line, re.DOTALL).groups()
        for declarator in map(str.strip, names.split(",")):
            plain = SCALARS.get(kind) or STRUCTURES.get(kind)
            is_pointer = declarator.startswith("*")
            fields.append((declarator.lstrip("* "), ctypes.c_void_p if is_pointer else plain))
    return fields


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_every_structure_is_that_of_the_source(name: str) -> None:
    assert STRUCTURES[name]._fields_ == declared(name)
