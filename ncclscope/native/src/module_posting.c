/* The hot path of a probe: see ncclscope_patches/probes/posting.py, which does the rest. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "module.h"
#include "place.h"

#include <stdbool.h>

/* What a probe knows of a communicator, if its calls can be recorded without Python. */
typedef struct Post {
    PyObject_HEAD
    PyObject *channel;
    PyObject *templates; /* as recording.Handle.templates */
    PyObject *capturing; /* asks whether a CUDA graph is being captured; None without GPUs */
} Post;

/* One method of the program that enqueues calls. */
typedef struct Method {
    PyObject_HEAD
    PyObject *known; /* Post by id of the object that has the method */
    PyObject *read;
    PyObject *groups, *folding; /* of scope: empty most of the time */
} Method;

static PyTypeObject *post_type, *method_type;

static bool is_capturing(const Post *post)
{
    if (post->capturing == Py_None)
        return false;
    PyObject *said = PyObject_CallFunctionObjArgs(post->capturing, NULL);
    bool capturing = !said || said != Py_False;
    Py_XDECREF(said);
    return capturing;
}

/* Record a call whose parameters and call site are known; -1 if they are not. */
static int64_t record_known(const Post *post, PyObject *parameters, PyObject *place)
{
    int64_t position = -1;
    PyObject *key = PyTuple_Pack(3, parameters, PyTuple_GetItem(place, 0), PyTuple_GetItem(place, 1));
    PyObject *found = key ? PyDict_GetItemWithError(post->templates, key) : NULL;
    if (found && PyTuple_GetItem(found, 2) == Py_False) {
        const char *fixed = PyBytes_AsString(PyTuple_GetItem(found, 0));
        uint64_t signature = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(found, 1));
        ns_channel *channel = ((Channel *)post->channel)->channel;
        if (fixed && !PyErr_Occurred())
            position = signature ? ns_post(channel, fixed, signature, 0, 0, 0, 0)
                                 : ns_post_p2p(channel, fixed, 0, 0, 0, 0);
    }
    Py_XDECREF(key);
    return position;
}

static PyObject *enter(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Method *method = (Method *)self;
    PyObject *thing = count == 2 && PyTuple_Check(args[0]) ? PyTuple_GetItem(args[0], 0) : NULL;
    int64_t position = -1;
    if (thing && !PyDict_Size(method->groups) && !PyDict_Size(method->folding)) {
        PyObject *number = PyLong_FromVoidPtr(thing);
        PyObject *post = number ? PyDict_GetItemWithError(method->known, number) : NULL;
        Py_XDECREF(number);
        PyObject *place = post && !is_capturing((Post *)post) ? ns_place_here() : NULL;
        if (place) {
            Py_INCREF(post);
            PyObject *parameters =
                PyObject_CallFunctionObjArgs(method->read, args[0], args[1], NULL);
            if (parameters)
                position = record_known((Post *)post, parameters, place);
            Py_XDECREF(parameters);
            Py_DECREF(post);
        }
    }
    /* Python meets the same trouble, if there is any, and says so. */
    PyErr_Clear();
    if (position < 0)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(position);
}

PyObject *ns_posting(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *known, *read, *groups, *folding;
    if (!PyArg_ParseTuple(args, "O!OO!O!", &PyDict_Type, &known, &read, &PyDict_Type, &groups,
                          &PyDict_Type, &folding))
        return NULL;
    Method *made = PyObject_New(Method, method_type);
    if (!made)
        return NULL;
    made->known = known;
    made->read = read;
    made->groups = groups;
    made->folding = folding;
    Py_INCREF(known);
    Py_INCREF(read);
    Py_INCREF(groups);
    Py_INCREF(folding);
    return (PyObject *)made;
}

PyObject *ns_post_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *channel, *templates, *capturing;
    if (!PyArg_ParseTuple(args, "O!O!O", ns_channel_type, &channel, &PyDict_Type, &templates,
                          &capturing))
        return NULL;
    Post *made = PyObject_New(Post, post_type);
    if (!made)
        return NULL;
    made->channel = channel;
    made->templates = templates;
    made->capturing = capturing;
    Py_INCREF(channel);
    Py_INCREF(templates);
    Py_INCREF(capturing);
    return (PyObject *)made;
}

static void method_free(PyObject *self)
{
    Method *method = (Method *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(method->known);
    Py_DECREF(method->read);
    Py_DECREF(method->groups);
    Py_DECREF(method->folding);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void post_free(PyObject *self)
{
    Post *post = (Post *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(post->channel);
    Py_DECREF(post->templates);
    Py_DECREF(post->capturing);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef method_methods[] = {
    {"enter", (PyCFunction)(void (*)(void))enter, METH_FASTCALL,
     "Record a call from its arguments; return its position, or None if Python must."},
    {0},
};
static PyType_Slot method_slots[] = {
    {Py_tp_dealloc, method_free}, {Py_tp_methods, method_methods}, {0},
};
static PyType_Slot post_slots[] = {{Py_tp_dealloc, post_free}, {0}};

enum { FLAGS = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION };

static PyType_Spec method_spec = {"ncclscope.native._core.Method", sizeof(Method), 0, FLAGS,
                                  method_slots};
static PyType_Spec post_spec = {"ncclscope.native._core.Post", sizeof(Post), 0, FLAGS, post_slots};

bool ns_posting_ready(void)
{
    method_type = (PyTypeObject *)PyType_FromSpec(&method_spec);
    post_type = (PyTypeObject *)PyType_FromSpec(&post_spec);
    return method_type && post_type;
}
