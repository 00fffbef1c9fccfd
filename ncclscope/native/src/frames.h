/* The frames of this thread, read where the interpreter keeps them: its functions make an object of each.
 *
 * Where they lie differs by version. So they are read only if they were found to be what the
 * interpreter's functions say; see callsite.teach(). */
#ifndef NCCLSCOPE_FRAMES_H
#define NCCLSCOPE_FRAMES_H

#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NS_DIRECT = -1, NS_FIRST_WITHOUT_CODE = 3 };

/* Offsets in bytes. */
typedef struct ns_frame_layout {
    int32_t current;  /* in the state of a thread: the innermost frame, or what leads to it */
    int32_t in_chain; /* in what leads to it; NS_DIRECT without */
    int32_t previous, code, instruction, owner; /* in a frame */
    int32_t begin;                              /* of the instructions, in a code object */
} ns_frame_layout;

extern ns_frame_layout ns_frames;

static inline const char *ns_frame_at(const char *from, int32_t offset)
{
    return *(const char *const *)(from + offset);
}

/* Skip what the interpreter puts between a function in C and the frames that it calls. */
static inline const char *ns_frame_with_code(const char *frame)
{
    while (frame && (unsigned char)frame[ns_frames.owner] >= NS_FIRST_WITHOUT_CODE)
        frame = ns_frame_at(frame, ns_frames.previous);
    return frame;
}

/* Return the innermost frame; the thread must have the interpreter's lock. NULL without any. */
static inline const char *ns_frame_innermost(void)
{
    const char *from = ns_frame_at((const char *)PyThreadState_Get(), ns_frames.current);
    if (from && ns_frames.in_chain != NS_DIRECT)
        from = ns_frame_at(from, ns_frames.in_chain);
    return ns_frame_with_code(from);
}

static inline const char *ns_frame_back(const char *frame)
{
    return ns_frame_with_code(ns_frame_at(frame, ns_frames.previous));
}

/* Return a frame's code, borrowed; the low bits say how the interpreter counts the reference. */
static inline PyObject *ns_frame_code(const char *frame)
{
    return (PyObject *)((uintptr_t)ns_frame_at(frame, ns_frames.code) & ~(uintptr_t)7);
}

/* As PyFrame_GetLasti(). */
static inline int ns_frame_lasti(const char *frame)
{
    const char *from = (const char *)ns_frame_code(frame) + ns_frames.begin;
    ptrdiff_t at = ns_frame_at(frame, ns_frames.instruction) - from;
    return at < 0 ? -1 : (int)at;
}

PyObject *ns_frames_of(PyObject *module, PyObject *version);  /* whether their layout is known */
PyObject *ns_frames_agree(PyObject *module, PyObject *none); /* whether all of this thread are as said */

#endif
