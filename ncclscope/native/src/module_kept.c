/* A call whose work the program may still wait for: an entry of works.pending. For Python it is the pair
 * that works.expect() keeps: a weak reference to the work, and (handle, position, waits). */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kept.h"

typedef struct Kept {
    PyObject_HEAD
    PyObject *reference, *handle;
    ns_ring *ring; /* of the handle; lives as long as the process */
    int64_t position;
    bool waits; /* whether the return of wait() means that the call has completed */
} Kept;

static PyTypeObject *kept_type;

PyObject *ns_kept_new(PyObject *work, PyObject *handle, ns_ring *ring, int64_t position,
                      bool waits)
{
    PyObject *reference = PyWeakref_NewRef(work, NULL);
    Kept *made = reference ? PyObject_New(Kept, kept_type) : NULL;
    if (!made) {
        Py_XDECREF(reference);
        return NULL;
    }
    made->reference = reference;
    made->handle = handle;
    made->waits = waits;
    made->ring = ring;
    made->position = position;
    Py_INCREF(handle);
    return (PyObject *)made;
}

bool ns_is_kept(PyObject *object)
{
    return Py_TYPE(object) == kept_type;
}

bool ns_kept_completed(PyObject *object, PyObject *work)
{
    const Kept *kept = (Kept *)object;
    /* A new object may have the same address. */
    if (!kept->waits || PyWeakref_GetObject(kept->reference) != work)
        return false;
    ns_advance(kept->ring, kept->position, COMPLETED);
    return true;
}

static Py_ssize_t length(PyObject *Py_UNUSED(self))
{
    return 2;
}

static PyObject *item(PyObject *self, Py_ssize_t at)
{
    const Kept *kept = (Kept *)self;
    if (at == 0) {
        Py_INCREF(kept->reference);
        return kept->reference;
    }
    if (at == 1)
        return Py_BuildValue("(OLO)", kept->handle, (long long)kept->position,
                             kept->waits ? Py_True : Py_False);
    PyErr_SetString(PyExc_IndexError, "a kept call is a pair");
    return NULL;
}

static void kept_free(PyObject *self)
{
    Kept *kept = (Kept *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(kept->reference);
    Py_DECREF(kept->handle);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_dealloc, kept_free}, {Py_sq_length, length}, {Py_sq_item, item}, {0},
};
static PyType_Spec spec = {
    "ncclscope.native._core.Kept", sizeof(Kept), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots,
};

bool ns_kept_ready(void)
{
    kept_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return kept_type != NULL;
}
