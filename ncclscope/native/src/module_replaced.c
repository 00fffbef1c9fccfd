/* What replaces a method that a probe has replaced: records a call, and makes it. Only calls that
 * take no Python to record are handled here; the others go to the function in Python. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "addresses.h"
#include "arguments.h"
#include "grouped.h"
#include "kept.h"
#include "module.h"
#include "noted.h"
#include "posting.h"
#include "replaced.h"

#include <stdbool.h>

/* Exported by every CPython, though not of the Limited API. */
extern PyTypeObject PyInstanceMethod_Type;

typedef struct Replaced {
    PyObject_HEAD
    ns_vector_call call;
    PyObject *attributes;
    PyObject *function; /* the method itself */
    ns_patch of;
    PyObject *pending;   /* works.pending, of addresses.h; NULL for a method that is noted */
    PyObject *slow;      /* records in Python; NULL for Work.wait() and for groups */
    PyObject *method;    /* of module_posting.c */
    PyObject *after;     /* takes what the call returned; or None */
    PyObject *listeners; /* of scope */
    Py_ssize_t most; /* works to keep; 0 if `after` must have all; -1 if a call that returns has completed */
    int can_be_off;
    PyObject *groups;  /* of scope, for a method that opens or ends a group; else NULL */
    PyObject *numbers; /* of the groups that it opens; NULL if it ends them */
    PyObject *marked;  /* whether `ended` has work; of device_streams */
    PyObject *ended;   /* called after the end of a group, with whether that failed */
    ns_noted *noted;   /* of a method that is noted while it runs; else NULL */
} Replaced;

static PyTypeObject *replaced_type;
static PyObject *func_name, *cpu_name, *active_name, *disabled_name, *ring_name, *advance_name, *bind;

bool ns_patch_take(ns_patch *to, PyObject *patch)
{
    to->state = PyObject_GenericGetDict(patch, NULL);
    to->patch = patch;
    if (to->state)
        Py_INCREF(patch);
    return to->state;
}

void ns_patch_drop(ns_patch *of)
{
    Py_DECREF(of->patch);
    Py_DECREF(of->state);
}

bool ns_patch_active(const ns_patch *of)
{
    PyObject *active = PyDict_GetItemWithError(of->state, active_name);
    if (!active && !PyErr_Occurred()) { /* of its class, then */
        active = PyObject_GetAttr(of->patch, active_name);
        Py_XDECREF(active);
    }
    return active == Py_True;
}

/* Whether a call enqueues anything; if it is not known, Python meets the same trouble. */
static bool is_on(const Replaced *self, const ns_arguments *given)
{
    if (!self->can_be_off)
        return true;
    PyObject *disabled =
        ns_positional_count(given) ? PyObject_GetAttr(given->args[0], disabled_name) : NULL;
    bool on = disabled == Py_False;
    Py_XDECREF(disabled);
    return on;
}

bool ns_patch_contains(const ns_patch *of)
{
    PyObject *type, *error, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return false;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *done = PyObject_CallMethod(of->patch, "fail", "O", error);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    return done != NULL;
}

int ns_on_cpu(const ns_arguments *given)
{
    for (Py_ssize_t at = 1; at < ns_positional_count(given); at++) {
        PyObject *item = given->args[at];
        for (int is_list; (is_list = PyList_Check(item)) || PyTuple_Check(item);) {
            if (!(is_list ? PyList_Size(item) : PyTuple_Size(item)))
                break;
            item = is_list ? PyList_GetItem(item, 0) : PyTuple_GetItem(item, 0);
        }
        PyObject *answer = PyObject_GetAttr(item, cpu_name);
        if (answer) {
            int is_true = PyObject_IsTrue(answer);
            Py_DECREF(answer);
            return is_true;
        }
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
    }
    return 0;
}

/* Keep a work until the program waits for it; 1 if it is kept, 0 if Python must, -1 for an error. */
static int keep(const Replaced *self, const ns_recorded *call, const ns_arguments *given,
                PyObject *work)
{
    if (work == Py_None || ns_addresses_count(self->pending) >= self->most)
        return 0;
    int waits = call->waits < 0 ? ns_on_cpu(given) : call->waits;
    if (waits < 0)
        return -1;
    PyObject *entry =
        ns_kept_new(work, call->handle, call->channel->ring, call->position, waits);
    int kept = entry && ns_addresses_put(self->pending, work, entry) ? 1 : -1;
    Py_XDECREF(entry);
    return kept;
}

/* Do what follows a call that returned; false if its result is lost to an error. */
static bool finish(const Replaced *self, const ns_recorded *call, const ns_arguments *given,
                   PyObject *result)
{
    int kept = self->most > 0 ? keep(self, call, given, result) : 0;
    if (kept == 0) {
        PyObject *args = ns_positional(given);
        PyObject *position = args ? PyLong_FromLongLong(call->position) : NULL;
        PyObject *done = position ? PyObject_CallFunctionObjArgs(self->after, call->handle, position,
                                                                 args, result, NULL)
                                  : NULL;
        Py_XDECREF(args);
        Py_XDECREF(position);
        Py_XDECREF(done);
        kept = done ? 1 : -1;
    }
    return kept > 0 || ns_patch_contains(&self->of);
}

void ns_patch_raised(const ns_patch *of, const ns_recorded *call)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *done = PyObject_CallMethod(of->patch, "raised", "OLO", call->handle,
                                         (long long)call->position, error ? error : Py_None);
    if (!done)
        PyErr_Clear();
    Py_XDECREF(done);
    PyErr_Restore(type, error, trace);
}

static PyObject *enqueue(const Replaced *self, const ns_arguments *given)
{
    PyObject *result;
    ns_recorded call;
    if (!ns_patch_active(&self->of)) {
        PyErr_Clear();
        return ns_call_as_given(self->function, given);
    }
    if (!is_on(self, given) || !ns_record_call(self->method, given, &call)) {
        PyErr_Clear();
        return ns_call_as_given(self->slow, given);
    }
    if (PySet_Size(self->listeners) > 0) {
        ns_announce(call.channel);
        result = ns_call_as_given(self->function, given);
        ns_conclude();
    } else {
        result = ns_call_as_given(self->function, given);
    }
    if (!result)
        ns_patch_raised(&self->of, &call);
    else if (self->most < 0)
        ns_advance(call.channel->ring, call.position, COMPLETED);
    else if (self->after != Py_None && !finish(self, &call, given, result))
        Py_CLEAR(result);
    Py_DECREF(call.handle);
    return result;
}

/* Record that a call has completed, if the return of wait() means that; false for an error. */
static bool completed(const Replaced *self, PyObject *work)
{
    PyObject *ring = NULL, *done = NULL, *state = NULL;
    PyObject *entry = ns_addresses_find(self->pending, work);
    bool is_well = true;
    if (entry && ns_is_kept(entry)) {
        if (ns_kept_completed(entry, work))
            ns_addresses_remove(self->pending, work);
    } else if (entry) {
        Py_INCREF(entry);
        PyObject *posted = PyTuple_Check(entry) ? PyTuple_GetItem(entry, 1) : NULL;
        if (!posted || !PyTuple_Check(posted) || PyTuple_Size(posted) != 3) {
            PyErr_SetString(PyExc_TypeError, "not a posted call");
            Py_DECREF(entry);
            return false;
        }
        int waits = PyObject_IsTrue(PyTuple_GetItem(posted, 2));
        is_well = waits >= 0;
        /* A new object may have the same address. */
        if (waits > 0 && PyWeakref_GetObject(PyTuple_GetItem(entry, 0)) == work) {
            ring = PyObject_GetAttr(PyTuple_GetItem(posted, 0), ring_name);
            state = PyLong_FromLong(COMPLETED);
            done = ring && state ? PyObject_CallMethodObjArgs(ring, advance_name,
                                                              PyTuple_GetItem(posted, 1), state, NULL)
                                 : NULL;
            is_well = done != NULL;
            if (done)
                ns_addresses_remove(self->pending, work);
        }
        Py_XDECREF(ring);
        Py_XDECREF(state);
        Py_XDECREF(done);
        Py_DECREF(entry);
    }
    return is_well;
}

/* End a group whether or not the method that ends it has failed, whose error stays. */
static PyObject *end_group(const Replaced *self, const ns_arguments *given)
{
    PyObject *type, *error, *trace;
    bool active = ns_patch_active(&self->of);
    PyObject *result = ns_call_as_given(self->function, given);
    if (!active)
        return result;
    PyErr_Fetch(&type, &error, &trace);
    bool is_well = ns_group_leave(self->groups);
    if (is_well && PyDict_Size(self->marked) > 0) {
        PyObject *done =
            PyObject_CallFunctionObjArgs(self->ended, result ? Py_False : Py_True, NULL);
        is_well = done != NULL;
        Py_XDECREF(done);
    }
    if (!is_well && !ns_patch_contains(&self->of)) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        Py_CLEAR(result);
        return NULL;
    }
    PyErr_Restore(type, error, trace);
    return result;
}

static PyObject *open_group(const Replaced *self, const ns_arguments *given)
{
    PyObject *result = ns_call_as_given(self->function, given);
    if (result && ns_patch_active(&self->of) && !ns_group_enter(self->groups, self->numbers)
        && !ns_patch_contains(&self->of))
        Py_CLEAR(result);
    return result;
}

/* Note an activity while the method runs, also if that fails, whose error stays. */
static PyObject *note(const Replaced *self, const ns_arguments *given)
{
    ns_note noted;
    int begun = ns_patch_active(&self->of) ? ns_note_begin(self->noted, given, &noted) : 0;
    if (PyErr_Occurred() && !ns_patch_contains(&self->of))
        return NULL;
    PyObject *result = ns_call_as_given(self->function, given), *type, *error, *trace;
    if (begun <= 0)
        return result;
    PyErr_Fetch(&type, &error, &trace);
    if (!ns_note_end(&noted) && !ns_patch_contains(&self->of)) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        Py_XDECREF(result);
        return NULL;
    }
    PyErr_Restore(type, error, trace);
    return result;
}

static PyObject *call(PyObject *object, PyObject *const *args, size_t flagged, PyObject *names)
{
    const Replaced *self = (Replaced *)object;
    const ns_arguments all = {args, flagged, names}, *given = &all;
    if (self->noted)
        return note(self, given);
    if (self->groups)
        return self->numbers ? open_group(self, given) : end_group(self, given);
    if (self->slow)
        return enqueue(self, given);
    PyObject *result = ns_call_as_given(self->function, given);
    if (!result || !ns_positional_count(given))
        return result;
    if (ns_patch_active(&self->of) && !completed(self, args[0]) && !ns_patch_contains(&self->of))
        Py_CLEAR(result);
    return result;
}

static PyObject *bound(PyObject *object, PyObject *owner, PyObject *Py_UNUSED(type))
{
    if (!owner || owner == Py_None) {
        Py_INCREF(object);
        return object;
    }
    return PyObject_CallFunctionObjArgs(bind, object, owner, NULL);
}

/* Return what a function of C++ wraps to be a method, which is called with the same arguments, or the
 * function itself; a new reference. */
static PyObject *without_wrapper(PyObject *function)
{
    PyObject *inner = Py_TYPE(function) == &PyInstanceMethod_Type ? PyObject_GetAttr(function, func_name) : NULL;
    if (inner)
        return inner;
    PyErr_Clear();
    Py_INCREF(function);
    return function;
}

static Replaced *made(PyObject *function, PyObject *patch, PyObject *pending)
{
    if (pending && !ns_is_addresses(pending)) {
        PyErr_SetString(PyExc_TypeError, "not a dict by id");
        return NULL;
    }
    ns_patch of;
    if (!ns_patch_take(&of, patch))
        return NULL;
    Replaced *self = PyObject_GC_New(Replaced, replaced_type);
    if (!self) {
        ns_patch_drop(&of);
        return NULL;
    }
    self->call = call;
    self->attributes = PyDict_New();
    self->function = without_wrapper(function);
    self->of = of;
    self->pending = pending;
    self->slow = self->method = self->after = self->listeners = NULL;
    self->most = self->can_be_off = 0;
    self->groups = self->numbers = self->marked = self->ended = NULL;
    self->noted = NULL;
    Py_XINCREF(pending);
    return self;
}

PyObject *ns_replaced(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *patch, *pending, *slow, *method, *after, *listeners;
    Py_ssize_t most;
    int can_be_off;
    if (!PyArg_ParseTuple(args, "OOOOOOOnp", &function, &patch, &pending, &slow, &method, &after,
                          &listeners, &most, &can_be_off))
        return NULL;
    if (!ns_is_method(method)) {
        PyErr_SetString(PyExc_TypeError, "not a method's recorder");
        return NULL;
    }
    Replaced *self = made(function, patch, pending);
    if (!self)
        return NULL;
    self->slow = slow;
    self->method = method;
    self->after = after;
    self->listeners = listeners;
    self->most = most;
    self->can_be_off = can_be_off;
    Py_INCREF(slow);
    Py_INCREF(method);
    Py_INCREF(after);
    Py_INCREF(listeners);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

PyObject *ns_waited(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *patch, *pending;
    if (!PyArg_ParseTuple(args, "OOO", &function, &patch, &pending))
        return NULL;
    Replaced *self = made(function, patch, pending);
    if (self)
        PyObject_GC_Track(self);
    return (PyObject *)self;
}

PyObject *ns_noted_method(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *patch, *read, *open;
    if (!PyArg_ParseTuple(args, "OOOO", &function, &patch, &read, &open))
        return NULL;
    Replaced *self = made(function, patch, NULL);
    if (self && !(self->noted = ns_noted_new(read, open)))
        Py_CLEAR(self);
    if (self)
        PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *forget(PyObject *object, PyObject *Py_UNUSED(none))
{
    if (((Replaced *)object)->noted)
        ns_noted_forget(((Replaced *)object)->noted);
    Py_RETURN_NONE;
}

PyObject *ns_grouped(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function, *patch, *pending, *groups, *numbers, *marked = NULL, *ended = NULL;
    if (!PyArg_ParseTuple(args, "OOOO!O|O!O", &function, &patch, &pending, &PyDict_Type, &groups,
                          &numbers, &PyDict_Type, &marked, &ended))
        return NULL;
    if (numbers == Py_None ? !ended : !PyIter_Check(numbers)) {
        PyErr_SetString(PyExc_TypeError, "neither opens a group nor ends one");
        return NULL;
    }
    Replaced *self = made(function, patch, pending);
    if (!self)
        return NULL;
    self->groups = groups;
    self->numbers = numbers == Py_None ? NULL : numbers;
    self->marked = marked;
    self->ended = ended;
    Py_INCREF(groups);
    Py_XINCREF(self->numbers);
    Py_XINCREF(marked);
    Py_XINCREF(ended);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Replaced *self = (Replaced *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->attributes);
    Py_VISIT(self->function);
    Py_VISIT(self->of.patch);
    Py_VISIT(self->of.state);
    Py_VISIT(self->pending);
    Py_VISIT(self->slow);
    Py_VISIT(self->after);
    return self->noted ? ns_noted_visit(self->noted, visit, arg) : 0;
}

/* Break cycles: all of them pass through these. A method that still runs has the rest. */
static int clear(PyObject *object)
{
    Py_CLEAR(((Replaced *)object)->attributes);
    return 0;
}

static void replaced_free(PyObject *object)
{
    Replaced *self = (Replaced *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    Py_DECREF(self->function);
    ns_patch_drop(&self->of);
    Py_XDECREF(self->pending);
    Py_XDECREF(self->slow);
    Py_XDECREF(self->method);
    Py_XDECREF(self->after);
    Py_XDECREF(self->listeners);
    Py_XDECREF(self->groups);
    Py_XDECREF(self->numbers);
    Py_XDECREF(self->marked);
    Py_XDECREF(self->ended);
    ns_noted_free(self->noted);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Replaced, attributes), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Replaced, call), READONLY, NULL},
    {0},
};
static PyMethodDef methods[] = {
    {"forget", forget, METH_NOARGS, "Look for the slot of the activity again."},
    {0},
};
static PyGetSetDef getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, replaced_free}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_call, ns_call_by_vector}, {Py_tp_descr_get, bound},  {Py_tp_members, members},
    {Py_tp_getset, getset},         {Py_tp_methods, methods},   {0},
};
static PyType_Spec spec = {
    "ncclscope.native._core.Replaced", sizeof(Replaced), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR
        | Py_TPFLAGS_DISALLOW_INSTANTIATION | NS_HAVE_VECTORCALL,
    slots,
};

bool ns_replaced_ready(void)
{
    PyObject *types = PyImport_ImportModule("types");
    bind = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
    Py_XDECREF(types);
    func_name = PyUnicode_InternFromString("__func__");
    cpu_name = PyUnicode_InternFromString("is_cpu");
    active_name = PyUnicode_InternFromString("active");
    disabled_name = PyUnicode_InternFromString("disabled");
    ring_name = PyUnicode_InternFromString("ring");
    advance_name = PyUnicode_InternFromString("advance");
    replaced_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return bind && func_name && cpu_name && active_name && disabled_name && ring_name && advance_name
           && replaced_type;
}
