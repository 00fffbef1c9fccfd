#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include "frames.h"

#include <string.h>

/* Not of the Limited API, but exported by every CPython from 3.9, 3.11 and 3.13 on. */
extern PyFrameObject *PyFrame_GetBack(PyFrameObject *) __attribute__((weak));
extern int PyFrame_GetLasti(PyFrameObject *) __attribute__((weak));
extern const uint64_t _PyRuntime[] __attribute__((weak));

ns_frame_layout ns_frames;

/* Versions before offsets were published. */
static const struct {
    unsigned version;
    ns_frame_layout layout;
} fixed[] = {
    {0x030B, {.current = 56, .in_chain = 8, .previous = 48, .code = 32, .instruction = 56, .owner = 69}},
    {0x030C, {.current = 56, .in_chain = 0, .previous = 8, .code = 0, .instruction = 56, .owner = 70}},
};

/* Where _PyRuntime, in words, has the offsets: as _Py_DebugOffsets. */
static const struct {
    unsigned version;
    unsigned current, frame; /* of thread_state.current_frame, and of interpreter_frame */
} published[] = {{0x030D, 23, 28}, {0x030E, 26, 31}};

enum { VERSION = 1, FREE_THREADED = 2, PREVIOUS = 1, CODE = 2, INSTRUCTION = 3, OWNER = 5 };
enum { OBJECTS_FRAME = 3 * sizeof(void *) }; /* in a frame object from 3.11 on: the frame itself */

static bool find_layout(unsigned long version, ns_frame_layout *to)
{
    for (size_t at = 0; at < sizeof fixed / sizeof *fixed; at++)
        if (fixed[at].version == version >> 16) {
            *to = fixed[at].layout;
            return true;
        }
    if (!_PyRuntime || memcmp(_PyRuntime, "xdebugpy", 8) || _PyRuntime[VERSION] != version
        || _PyRuntime[FREE_THREADED])
        return false;
    for (size_t at = 0; at < sizeof published / sizeof *published; at++)
        if (published[at].version == version >> 16) {
            const uint64_t *frame = &_PyRuntime[published[at].frame];
            *to = (ns_frame_layout){
                .current = (int32_t)_PyRuntime[published[at].current],
                .in_chain = NS_DIRECT,
                .previous = (int32_t)frame[PREVIOUS],
                .code = (int32_t)frame[CODE],
                .instruction = (int32_t)frame[INSTRUCTION],
                .owner = (int32_t)frame[OWNER],
            };
            return true;
        }
    return false;
}

PyObject *ns_frames_of(PyObject *Py_UNUSED(module), PyObject *version)
{
    unsigned long given = PyLong_AsUnsignedLong(version);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(PyFrame_GetBack && PyFrame_GetLasti && sizeof(void *) == 8
                           && find_layout(given, &ns_frames));
}

/* Compare a frame with its object. The first one shows where instructions begin in a code object. */
static bool agree(const char *frame, PyFrameObject *object)
{
    if (!frame || !object || ns_frame_at((const char *)object, OBJECTS_FRAME) != frame)
        return !frame && !object;
    PyObject *code = (PyObject *)PyFrame_GetCode(object);
    int at = PyFrame_GetLasti(object);
    bool is_same = ns_frame_code(frame) == code && at >= 0;
    if (is_same && !ns_frames.begin)
        ns_frames.begin =
            (int32_t)(ns_frame_at(frame, ns_frames.instruction) - (const char *)code) - at;
    Py_DECREF(code);
    return is_same && ns_frame_lasti(frame) == at;
}

PyObject *ns_frames_agree(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    if (!ns_frames.current)
        Py_RETURN_FALSE;
    const char *frame = ns_frame_innermost();
    PyFrameObject *object = PyEval_GetFrame();
    Py_XINCREF(object);
    bool is_same;
    while ((is_same = agree(frame, object)) && object) {
        PyFrameObject *outer = PyFrame_GetBack(object);
        Py_DECREF(object);
        object = outer;
        frame = ns_frame_back(frame);
    }
    Py_XDECREF(object);
    return PyBool_FromLong(is_same);
}
