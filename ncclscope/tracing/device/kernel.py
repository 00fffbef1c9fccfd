"""What the GPU runs behind a call: count it, and say so in host memory.

PTX of the oldest version that the driver's own compiler takes for every architecture since
Pascal, so that neither a compiler nor NVRTC is needed on the host, and none has to fit the
driver. The counts stand in the module's own memory: they begin at zero when it is loaded. Count
and clock reach the host in one store, and nothing is read from there.

In CUDA C, for ``place`` in host memory::

    count = atomicAdd(&counts[offset / 8], more) + more;
    *(volatile ulonglong2 *)place = {count, globaltimer};
"""

from __future__ import annotations

__all__ = ["COUNT_BYTES", "NAME", "PTX"]

NAME = b"ncclscope_mark"
COUNT_BYTES = 8192
"""Of counts: 512 communicators, two of 8 bytes each."""

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
