"""The structures of ``free_run.cpp`` as ctypes sees them, field by field; see there."""

import ctypes
from typing import Any

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Long = ctypes.c_int64
Float = ctypes.c_float


def _struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Matrix = _struct(
    "Matrix",
    data=Pointer,
    bias=Pointer,
    scale=Pointer,
    sums=Pointer,
    n=Int,
    k=Int,
    type=Int,
)
Linear = _struct(
    "Linear",
    m=Matrix,
    x=Pointer,
    y=Pointer,
    ldx=Long,
    ldy=Long,
    activation=Int,
    add=Int,
    gate=Pointer,
    spans=Pointer,
    taps=Long,
)
Norm = _struct(
    "Norm",
    x=Pointer,
    weight=Pointer,
    bias=Pointer,
    y=Pointer,
    width=Long,
    eps=Float,
    activation=Int,
)
Dropout = _struct(
    "Dropout",
    x=Pointer,
    utterances=Pointer,
    width=Long,
    key=ctypes.c_uint32,
    threshold=ctypes.c_uint32,
    keep=Float,
)
Positions = _struct("Positions", x=Pointer, table=Pointer, width=Long)
LinearAttention = _struct(
    "LinearAttention",
    qkv=Pointer,
    y=Pointer,
    s=Pointer,
    z=Pointer,
    heads=Int,
    width=Int,
    map=Int,
    eps=Float,
)
Location = _struct("Location", advance=Pointer, centre=Pointer, offset=Pointer, log_sigma=Pointer)
Walk = _struct("Walk", moves=Pointer, reached=Pointer, floor=Float)
Attention = _struct(
    "Attention",
    q=Pointer,
    y=Pointer,
    k=Pointer,
    v=Pointer,
    lengths=Pointer,
    weights=Pointer,
    ldq=Long,
    places=Long,
    steps=Long,
    symbols=Long,
    guided=Long,
    heads=Int,
    width=Int,
    shown=Int,
    location=Location,
    walk=Walk,
)
SpanAttention = _struct(
    "SpanAttention", qkv=Pointer, y=Pointer, spans=Pointer, slopes=Pointer, heads=Int, width=Int
)
Remember = _struct(
    "Remember",
    kv=Pointer,
    k=Pointer,
    v=Pointer,
    spans=Pointer,
    places=Long,
    heads=Int,
    width=Int,
)
Recent = _struct("Recent", x=Pointer, past=Pointer, y=Pointer, kept=Long, width=Long)
Operation = _struct("Operation", kind=Int, what=Pointer)
Group = _struct("Group", first=Long, size=Long, alive=Long, t=Long)
Run = _struct(
    "Run",
    operations=Pointer,
    num_operations=Long,
    groups=Pointer,
    num_groups=Long,
    utterance=Pointer,
    threads=Int,
    parallel=Pointer,
    input=Pointer,
    frames=Pointer,
    stop_logits=Pointer,
    mel=Pointer,
    stop=Pointer,
    lengths=Pointer,
    stopped=Pointer,
    max_frames=Pointer,
    scale=Pointer,
    shift=Pointer,
    max_steps=Long,
    frames_a_step=Int,
    num_mels=Int,
    threshold=Float,
)
