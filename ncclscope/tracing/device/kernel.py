"""The GPU kernel that runs after a call: count it, and write the count to host memory.

It is PTX of the oldest version that the driver compiles for every architecture since Pascal. So
the host needs neither a compiler nor an NVRTC that matches the driver. The counts are in the
module's own memory, which is zero when it is loaded. The kernel writes count and clock to the
host in one store, and reads nothing from there.

In CUDA C, for ``place`` in host memory::

    count = atomicAdd(&counts[offset / 8], more) + more;
    *(volatile ulonglong2 *)place = {count, globaltimer};
"""

from __future__ import annotations

NAME = b"ncclscope_mark"
COUNT_BYTES = 8192
"""Bytes of all counts: two of 8 bytes for each of 512 communicators."""

PTX = b"""
.version 6.0
.target sm_60
.address_size 64

.global .align 16 .b8 counts[8192];

.visible .entry ncclscope_mark(
    .param .u64 place,
    .param .u64 offset,
    .param .u64 more
)
{
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [place];
    ld.param.u64 %rd2, [offset];
    ld.param.u64 %rd3, [more];
    mov.u64 %rd4, counts;
    add.s64 %rd4, %rd4, %rd2;
    atom.global.add.u64 %rd5, [%rd4], %rd3;
    add.s64 %rd6, %rd5, %rd3;
    mov.u64 %rd7, %globaltimer;
    st.volatile.global.v2.u64 [%rd1], {%rd6, %rd7};
    ret;
}
\0"""
