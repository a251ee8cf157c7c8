"""The structures of ``free_run.cpp`` as ctypes sees them, declared line by line as there."""

import ctypes
from typing import Any

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Long = ctypes.c_int64
_TYPES: dict[str, Any] = {
    "pointer": Pointer,
    "int": Int,
    "uint": ctypes.c_uint32,
    "long": Long,
    "float": ctypes.c_float,
}
"""Of the words that declarations begin with; each structure joins them."""


def _struct(name: str, *declarations: str) -> type[ctypes.Structure]:
    """A structure of fields ``TYPE NAME NAME ...``; a test compares them with the source."""
    fields = [
        (field, _TYPES[kind])
        for kind, *names in (line.split() for line in declarations)
        for field in names
    ]
    made = type(name, (ctypes.Structure,), {"_fields_": fields})
    _TYPES[name] = made
    return made


Matrix = _struct("Matrix", "pointer data bias scale sums", "int n k type")
Linear = _struct(
    "Linear",
    "Matrix m",
    "pointer x y",
    "long ldx ldy",
    "int activation add",
    "pointer gate spans",
    "long taps",
)
Norm = _struct("Norm", "pointer x weight bias y", "long width", "float eps", "int activation")
Dropout = _struct(
    "Dropout", "pointer x utterances", "long width", "uint key threshold", "float keep"
)
Positions = _struct("Positions", "pointer x table", "long width")
LinearAttention = _struct(
    "LinearAttention", "pointer qkv y s z", "int heads width map", "float eps"
)
Location = _struct("Location", "pointer advance centre offset log_sigma")
Walk = _struct("Walk", "pointer moves reached", "float floor")
Attention = _struct(
    "Attention",
    "pointer q y k v lengths weights",
    "long ldq places steps symbols guided",
    "int heads width shown",
    "Location location",
    "Walk walk",
)
SpanAttention = _struct("SpanAttention", "pointer qkv y spans slopes", "int heads width")
Recent = _struct("Recent", "pointer x past y", "long kept width")
Remember = _struct("Remember", "pointer kv k v spans", "long places", "int heads width")
Operation = _struct("Operation", "int kind", "pointer what")
Group = _struct("Group", "long first size alive t")
Run = _struct(
    "Run",
    "pointer operations",
    "long num_operations",
    "pointer groups",
    "long num_groups",
    "pointer utterance",
    "int threads",
    "pointer parallel input frames stop_logits mel stop lengths stopped max_frames scale shift",
    "long max_steps",
    "int frames_a_step num_mels",
    "float threshold",
)
