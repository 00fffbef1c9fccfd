/* A kernel of torch's dispatcher: records a call that C++ posts, and passes it on. See
 * ncclscope_patches/probes/from_cpp/dispatcher.py, which records the calls that this cannot. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pythread.h>
#include <structmember.h>

#include "arguments.h"
#include "module.h"
#include "posting.h"
#include "replaced.h"

#include <stdbool.h>

enum { MOST = 24 }; /* arguments */

typedef struct Kernel {
    PyObject_HEAD
    ns_vector_call call;
    ns_patch of;
    PyObject *slow;   /* the kernel in Python */
    PyObject *method; /* of module_posting.c */
    PyObject *unbox;  /* returns the process group of an argument */
    PyObject *redispatch, *after; /* passes a call on, to those of these keys */
    PyObject *phases; /* of the dispatcher */
    Py_ssize_t group_at; /* behind the keys */
    int leaves;          /* all calls to Python */
} Kernel;

static PyTypeObject *kernel_type;

/* Note a call that has completed at the end of the phase that is open on this thread; false with an error
 * set. */
static bool note_phase(const Kernel *self, const ns_arguments *given, const ns_recorded *call)
{
    if (!PyDict_Size(self->phases))
        return true;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident()), *pair = NULL;
    PyObject *calls = thread ? PyDict_GetItemWithError(self->phases, thread) : NULL;
    int waits = !calls ? 0 : call->waits < 0 ? ns_on_cpu(given) : call->waits;
    if (waits > 0 && (pair = Py_BuildValue("OL", call->handle, (long long)call->position)))
        PyList_Append(calls, pair);
    Py_XDECREF(pair);
    Py_XDECREF(thread);
    return !PyErr_Occurred();
}

/* Record a call as one of a method of its process group; false if Python must. */
static bool record(const Kernel *self, PyObject *const *args, Py_ssize_t count, ns_recorded *call)
{
    PyObject *passed[MOST];
    Py_ssize_t group_at = 1 + self->group_at, to = 1;
    if (self->leaves || count <= group_at)
        return false;
    passed[0] = PyObject_CallFunctionObjArgs(self->unbox, args[group_at], NULL);
    for (Py_ssize_t at = 1; at < count; at++)
        if (at != group_at)
            passed[to++] = args[at];
    const ns_arguments given = {passed, (size_t)to, NULL};
    bool is_recorded = passed[0] && ns_record_call(self->method, &given, call);
    if (is_recorded && !note_phase(self, &given, call))
        ns_patch_contains(&self->of);
    Py_XDECREF(passed[0]);
    return is_recorded;
}

static PyObject *pass_on(const Kernel *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *passed[MOST], *result = NULL;
    passed[0] = PyErr_Occurred() ? NULL : PyNumber_And(args[0], self->after);
    for (Py_ssize_t at = 1; at < count; at++)
        passed[at] = args[at];
    if (passed[0])
        result = ns_call_as_given(self->redispatch, &(ns_arguments){passed, (size_t)count, NULL});
    Py_XDECREF(passed[0]);
    return result;
}

static PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names)
{
    const Kernel *self = (Kernel *)object;
    const ns_arguments given = {args, flagged, names};
    Py_ssize_t count = ns_positional_count(&given);
    ns_channel *announced;
    ns_recorded call;
    if ((names && PyTuple_Size(names)) || count > MOST || count < 1)
        return ns_call_as_given(self->slow, &given);
    if (!ns_patch_active(&self->of) || ns_announced(&announced)) {
        PyErr_Clear();
        return pass_on(self, args, count);
    }
    if (!record(self, args, count, &call)) {
        PyErr_Clear();
        return ns_call_as_given(self->slow, &given);
    }
    ns_announce(call.channel);
    PyObject *result = pass_on(self, args, count);
    ns_conclude();
    if (!result)
        ns_patch_raised(&self->of, &call);
    Py_DECREF(call.handle);
    return result;
}

PyObject *ns_kernel(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *patch, *slow, *method, *unbox, *redispatch, *after, *phases;
    Py_ssize_t group_at;
    if (!PyArg_ParseTuple(args, "OOOOOOO!n", &patch, &slow, &method, &unbox, &redispatch, &after,
                          &PyDict_Type, &phases, &group_at))
        return NULL;
    if (!ns_is_method(method) || group_at < 0) {
        PyErr_SetString(PyExc_TypeError, "not a method's recorder");
        return NULL;
    }
    ns_patch of;
    if (!ns_patch_take(&of, patch))
        return NULL;
    Kernel *made = PyObject_New(Kernel, kernel_type);
    if (!made) {
        ns_patch_drop(&of);
        return NULL;
    }
    made->call = call;
    made->of = of;
    made->slow = slow;
    made->method = method;
    made->unbox = unbox;
    made->redispatch = redispatch;
    made->after = after;
    made->phases = phases;
    made->group_at = group_at;
    made->leaves = false;
    Py_INCREF(slow);
    Py_INCREF(method);
    Py_INCREF(unbox);
    Py_INCREF(redispatch);
    Py_INCREF(after);
    Py_INCREF(phases);
    return (PyObject *)made;
}

static PyObject *leave(PyObject *self, PyObject *Py_UNUSED(none))
{
    ((Kernel *)self)->leaves = true;
    Py_RETURN_NONE;
}

static void kernel_free(PyObject *object)
{
    Kernel *self = (Kernel *)object;
    PyTypeObject *type = Py_TYPE(object);
    ns_patch_drop(&self->of);
    Py_DECREF(self->slow);
    Py_DECREF(self->method);
    Py_DECREF(self->unbox);
    Py_DECREF(self->redispatch);
    Py_DECREF(self->after);
    Py_DECREF(self->phases);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Kernel, call), READONLY, NULL},
    {0},
};
static PyMethodDef methods[] = {
    {"leave", leave, METH_NOARGS, "Leave all calls to Python from now on."},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, kernel_free}, {Py_tp_call, ns_call_by_vector}, {Py_tp_members, members},
    {Py_tp_methods, methods},     {0},
};
static PyType_Spec spec = {
    "ncclscope.native._core.Kernel", sizeof(Kernel), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | NS_HAVE_VECTORCALL, slots,
};

bool ns_kernel_ready(void)
{
    kernel_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return kernel_type != NULL;
}
