/* Tracer.record() for a call whose parameters are known: everything else is left to Python. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "grouped.h"
#include "arguments.h"
#include "module.h"
#include "place.h"

#include <stdbool.h>

/* The parameters of Tracer.record() in the order of its key, then those that are not part of it. */
enum { OP, SHAPE, DTYPE, REDOP, ROOT, PEER, NUMEL, SIZES, OUT_SHAPE, OUT_SIZES, SITE, PLACE, KEY };
enum { STATE = KEY, CAPTURED, GRAPH, ALL };

static const char *const names[ALL] = {
    [SHAPE] = "shape",         [DTYPE] = "dtype",         [REDOP] = "redop", [ROOT] = "root",
    [PEER] = "peer",           [NUMEL] = "numel",         [SIZES] = "sizes", [OUT_SHAPE] = "out_shape",
    [OUT_SIZES] = "out_sizes", [SITE] = "site",           [STATE] = "state", [CAPTURED] = "captured",
    [GRAPH] = "graph",
};
static PyObject *interned[ALL], *channel_name, *templates_name;

typedef struct Recorder {
    PyObject_HEAD
    Ring *ring;
    PyObject *slow;   /* Tracer.record, bound: it records what this cannot */
    PyObject *groups; /* scope.groups: empty outside of NCCL groups */
} Recorder;

static PyTypeObject *recorder_type;

/* Put keyword arguments into their places; false for one that is not known. */
static bool sort(PyObject *const *values, PyObject *keywords, PyObject *to[ALL])
{
    Py_ssize_t count = keywords ? PyTuple_Size(keywords) : 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *name = PyTuple_GetItem(keywords, at);
        int place = SHAPE;
        while (place < ALL && interned[place] != name)
            place++;
        if (place == ALL)
            return false;
        to[place] = values[at];
    }
    return true;
}

/* Whether the call is one that a cached template describes: no list, flag, state or group. */
static bool is_plain(PyObject *const given[ALL], PyObject *groups)
{
    static const int lists[] = {SHAPE, SIZES, OUT_SHAPE, OUT_SIZES};
    for (size_t at = 0; at < sizeof lists / sizeof *lists; at++)
        if (given[lists[at]] != Py_None && !PyTuple_Check(given[lists[at]]))
            return false;
    return !given[STATE] && !given[GRAPH] && (!given[CAPTURED] || given[CAPTURED] == Py_False)
           && given[SIZES] == Py_None && PyDict_Size(groups) == 0;
}

/* Record a call by the template that its communicator has for the key; -1 if there is none. */
static int64_t by_template(PyObject *comm, PyObject *key)
{
    int64_t position = -1;
    PyObject *templates = PyObject_GetAttr(comm, templates_name), *channel = NULL;
    PyObject *found = templates ? PyDict_GetItemWithError(templates, key) : NULL;
    if (found && PyTuple_Check(found) && (channel = PyObject_GetAttr(comm, channel_name))
        && Py_TYPE(channel) == ns_channel_type) {
        const char *fixed = PyBytes_AsString(PyTuple_GetItem(found, 0));
        uint64_t signature = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(found, 1));
        ns_channel *mine = ((Channel *)channel)->channel;
        if (fixed && !PyErr_Occurred())
            position = signature ? ns_post(mine, fixed, signature, 0, ns_thread_flags(), 0, 0)
                                 : ns_post_p2p(mine, fixed, 0, ns_thread_flags(), 0, 0);
    }
    Py_XDECREF(channel);
    Py_XDECREF(templates);
    return position;
}

static PyObject *record(PyObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords)
{
    Recorder *recorder = (Recorder *)self;
    PyObject *given[ALL];
    for (int at = 0; at < KEY; at++)
        given[at] = Py_None;
    given[STATE] = given[CAPTURED] = given[GRAPH] = NULL;
    if (count == 2 && sort(args + count, keywords, given) && is_plain(given, recorder->groups)) {
        given[OP] = args[1];
        PyObject *place = given[SITE] == Py_None ? ns_place_here() : Py_None;
        if (place) {
            given[PLACE] = place;
            PyObject *key =
                PyTuple_Pack(KEY, given[OP], given[SHAPE], given[DTYPE], given[REDOP], given[ROOT],
                             given[PEER], given[NUMEL], given[SIZES], given[OUT_SHAPE],
                             given[OUT_SIZES], given[SITE], given[PLACE]);
            int64_t position = key ? by_template(args[0], key) : -1;
            Py_XDECREF(key);
            if (position >= 0)
                return PyLong_FromLongLong(position);
        }
        /* Python meets the same trouble, if there is any, and says so. */
        PyErr_Clear();
    }
    return ns_call_as_given(recorder->slow, &(ns_arguments){args, count, keywords});
}

PyObject *ns_recorder(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *ring, *slow, *groups;
    if (!PyArg_ParseTuple(args, "O!OO!", ns_ring_type, &ring, &slow, &PyDict_Type, &groups))
        return NULL;
    Recorder *made = PyObject_GC_New(Recorder, recorder_type);
    if (!made)
        return NULL;
    made->ring = (Ring *)ring;
    made->slow = slow;
    made->groups = groups;
    Py_INCREF(ring);
    Py_INCREF(slow);
    Py_INCREF(groups);
    PyObject_GC_Track(made);
    return (PyObject *)made;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Recorder *)self)->slow);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((Recorder *)self)->slow);
    return 0;
}

static void recorder_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_XDECREF(((Recorder *)self)->ring);
    Py_XDECREF(((Recorder *)self)->groups);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"record", (PyCFunction)(void (*)(void))record, METH_FASTCALL | METH_KEYWORDS,
     "Record a call: see ncclscope.Tracer.record()."},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, recorder_free}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_methods, methods},       {0},
};
static PyType_Spec spec = {
    "ncclscope.native._core.Recorder", sizeof(Recorder), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots,
};

bool ns_record_ready(void)
{
    for (int at = 0; at < ALL; at++)
        if (names[at] && !(interned[at] = PyUnicode_InternFromString(names[at])))
            return false;
    channel_name = PyUnicode_InternFromString("channel");
    templates_name = PyUnicode_InternFromString("templates");
    recorder_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return channel_name && templates_name && recorder_type;
}
