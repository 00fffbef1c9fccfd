/* The hot path of a probe: see ncclscope_patches/probes/posting.py, which does the rest. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "addresses.h"
#include "grouped.h"
#include "module.h"
#include "place.h"
#include "posting.h"
#include "seen.h"

#include <stdbool.h>

/* What a probe knows of a communicator, if its calls can be recorded without Python. */
typedef struct Post {
    PyObject_HEAD
    PyObject *channel;
    PyObject *templates; /* as recording.Handle.templates */
    PyObject *capturing; /* asks whether a CUDA graph is being captured; None without GPUs */
    PyObject *handle;
    int waits;     /* of the handle; -1 if it depends on the tensor */
    ns_seen *seen; /* some of the templates */
} Post;

/* One method of the program that enqueues calls. */
typedef struct Method {
    PyObject_HEAD
    PyObject *known; /* Post by id of the object that has the method */
    PyObject *read;
    PyObject *groups, *suppressing; /* of scope */
    PyObject *op;               /* of a plan; NULL if only `read` knows the parameters */
    ns_parameter tensor, redop, sizes;
    PyObject *plain, *modes; /* of an operator: as operators.plain_types and modes(); else NULL */
} Method;

/* Assigns a property and remembers what was assigned; see posted_calls.note_redop(). */
typedef struct Setter {
    PyObject_HEAD
    PyObject *assign;
} Setter;

enum { ALWAYS_SUM = 64 }; /* position of a reduction that is none of the arguments */

static PyTypeObject *post_type, *method_type, *setter_type;
static PyObject *shape_name, *dtype_name, *meta_name, *waits_name, *usual_redop;
static PyObject *redop_names; /* by id: (the object, its name); grows, and keeps both alive */
static PyObject *last_redop, *last_name; /* the one that was looked up last */
static PyObject *capturing_now; /* torch's own function, once CUDA is in use; asked instead */
static PyObject *noted_options, *noted_redop; /* the first is borrowed, and only compared */

/* --- parameters --------------------------------------------------------------------------------- */

/* Return the name of a reduction, borrowed; NULL if only Python knows it. */
static PyObject *name_of(PyObject *given)
{
    PyObject *redop = given;
    if (given && given == noted_options) {
        redop = noted_redop;
        noted_options = NULL; /* a later object at its place may keep its default */
    }
    if (!redop || redop == Py_None)
        return usual_redop;
    if (redop == last_redop)
        return last_name;
    PyObject *number = PyLong_FromVoidPtr(redop);
    PyObject *known = number ? PyDict_GetItemWithError(redop_names, number) : NULL;
    Py_XDECREF(number);
    if (!known)
        return NULL;
    last_redop = redop;
    last_name = PyTuple_GetItem(known, 1);
    return last_name;
}

static PyObject *read_parameters(const Method *method, const ns_arguments *given)
{
    PyObject *args = ns_positional(given), *named = args ? ns_by_name(given) : NULL;
    PyObject *found = named ? PyObject_CallFunctionObjArgs(method->read, args, named, NULL) : NULL;
    Py_XDECREF(args);
    Py_XDECREF(named);
    return found;
}

/* Read the sizes of a v-collective; false if they are not a list or tuple of a few ints. */
static bool read_sizes(PyObject *given, ns_planned *to)
{
    bool is_list = Py_TYPE(given) == &PyList_Type;
    if (!is_list && Py_TYPE(given) != &PyTuple_Type)
        return false;
    to->size_count = is_list ? PyList_Size(given) : PyTuple_Size(given);
    if (to->size_count < 1 || to->size_count > NS_MOST_SIZES)
        return false;
    for (Py_ssize_t at = 0; at < to->size_count; at++) {
        PyObject *size = is_list ? PyList_GetItem(given, at) : PyTuple_GetItem(given, at);
        int overflow;
        if (Py_TYPE(size) != &PyLong_Type)
            return false;
        to->sizes[at] = PyLong_AsLongLongAndOverflow(size, &overflow);
        if (overflow)
            return false;
    }
    return true;
}

/* As operators.is_real(), for types that it has met; maybe with an error set. */
static bool runs_kernel(const Method *method, PyObject *tensor)
{
    if (!method->plain)
        return true;
    if (PyDict_GetItemWithError(method->plain, (PyObject *)Py_TYPE(tensor)) != Py_True)
        return false;
    PyObject *meta = PyObject_GetAttr(tensor, meta_name);
    bool runs = meta == Py_False;
    Py_XDECREF(meta);
    for (Py_ssize_t at = 0; runs && at < PyTuple_Size(method->modes); at++) {
        PyObject *mode = PyObject_CallNoArgs(PyTuple_GetItem(method->modes, at));
        runs = mode && PyObject_IsTrue(mode) == 0;
        Py_XDECREF(mode);
    }
    return runs;
}

/* Read what the method's reader would return, if that takes no Python; then `shape` and `dtype` are new
 * references. Returns false, maybe with an error set, if it does. */
static bool read_planned(const Method *method, const ns_arguments *given, ns_planned *to)
{
    const ns_parameter *redop = &method->redop;
    bool is_usual = !redop->at || redop->at >= ALWAYS_SUM;
    PyObject *tensor = method->op ? ns_argument(given, &method->tensor) : NULL;
    if (!tensor
        || (!is_usual && !redop->name && given->names && PyTuple_Size(given->names)))
        return false;
    to->size_count = 0;
    if (method->sizes.at) {
        PyObject *sizes = ns_argument(given, &method->sizes);
        if (!sizes || !read_sizes(sizes, to))
            return false;
    }
    if (Py_TYPE(tensor) == &PyList_Type) {
        if (PyList_Size(tensor) != 1)
            return false;
        tensor = PyList_GetItem(tensor, 0);
    }
    to->op = method->op;
    to->redop = NULL;
    if (redop->at && !(to->redop = name_of(ns_argument(given, redop))))
        return false;
    Py_INCREF(tensor); /* a tensor's class may be the program's, and change the list */
    to->dtype = NULL;
    to->shape = runs_kernel(method, tensor) ? PyObject_GetAttr(tensor, shape_name) : NULL;
    to->dtype = to->shape ? PyObject_GetAttr(tensor, dtype_name) : NULL;
    Py_DECREF(tensor);
    if (to->dtype)
        return true;
    Py_XDECREF(to->shape);
    return false;
}

static PyObject *sizes_of(const ns_planned *call)
{
    PyObject *sizes = PyTuple_New(call->size_count);
    for (Py_ssize_t at = 0; sizes && at < call->size_count; at++) {
        PyObject *size = PyLong_FromLongLong(call->sizes[at]);
        if (!size || PyTuple_SetItem(sizes, at, size) < 0)
            Py_CLEAR(sizes);
    }
    return sizes;
}

static PyObject *as_tuple(const ns_planned *call)
{
    if (call->size_count) {
        PyObject *sizes = sizes_of(call), *none = Py_None;
        PyObject *redop = call->redop ? call->redop : none, *made = NULL;
        if (sizes)
            made = PyTuple_Pack(8, call->op, call->shape, call->dtype, redop, none, none, none, sizes);
        Py_XDECREF(sizes);
        return made;
    }
    if (call->redop)
        return PyTuple_Pack(4, call->op, call->shape, call->dtype, call->redop);
    return PyTuple_Pack(3, call->op, call->shape, call->dtype);
}

static void note(PyObject *options, PyObject *redop)
{
    PyObject *before = noted_redop;
    Py_INCREF(redop);
    noted_options = options;
    noted_redop = redop;
    Py_XDECREF(before);
}

PyObject *ns_note_redop(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *options, *redop;
    if (!PyArg_ParseTuple(args, "OO", &options, &redop))
        return NULL;
    note(options, redop);
    Py_RETURN_NONE;
}

static PyObject *assign(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "a property is assigned one value");
        return NULL;
    }
    PyObject *done = ns_call_as_given(((Setter *)self)->assign, &(ns_arguments){args, 2, NULL});
    if (!done)
        return NULL;
    Py_DECREF(done);
    note(args[0], args[1]);
    Py_RETURN_NONE;
}

PyObject *ns_setter(PyObject *Py_UNUSED(module), PyObject *function)
{
    Setter *made = PyObject_New(Setter, setter_type);
    if (made) {
        made->assign = function;
        Py_INCREF(function);
    }
    return (PyObject *)made;
}

PyObject *ns_take_noted(PyObject *Py_UNUSED(module), PyObject *options)
{
    PyObject *found = options == noted_options && noted_redop ? noted_redop : Py_None;
    noted_options = NULL;
    Py_INCREF(found);
    return found;
}

PyObject *ns_use_redops(PyObject *Py_UNUSED(module), PyObject *names)
{
    if (!PyDict_Check(names)) {
        PyErr_SetString(PyExc_TypeError, "not a dict");
        return NULL;
    }
    Py_INCREF(names);
    Py_XDECREF(redop_names);
    last_redop = last_name = NULL;
    redop_names = names;
    Py_RETURN_NONE;
}

PyObject *ns_use_capturing(PyObject *Py_UNUSED(module), PyObject *function)
{
    PyObject *before = capturing_now;
    capturing_now = function == Py_None ? NULL : function;
    Py_XINCREF(capturing_now);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* --- calls -------------------------------------------------------------------------------------- */

static bool is_capturing(const Post *post)
{
    if (post->capturing == Py_None)
        return false;
    PyObject *ask = capturing_now ? capturing_now : post->capturing;
    Py_INCREF(ask);
    PyObject *answer = PyObject_CallNoArgs(ask);
    Py_DECREF(ask);
    bool capturing = !answer || answer != Py_False;
    Py_XDECREF(answer);
    return capturing;
}

static const ns_ring *ring_of(const Post *post)
{
    return ((Channel *)post->channel)->channel->ring;
}

/* Return the template of a call whose parameters and call site are known; `fixed` is NULL if they are
 * not, or if the template has expired. The template belongs to the Post. */
static ns_packed template_of(const Post *post, PyObject *parameters, PyObject *place)
{
    ns_packed packed = {NULL, 0};
    PyObject *key = PyTuple_Pack(3, parameters, PyTuple_GetItem(place, 0), PyTuple_GetItem(place, 1));
    PyObject *found = key ? PyDict_GetItemWithError(post->templates, key) : NULL;
    if (found) {
        packed.signature = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(found, 1));
        packed.fixed = PyErr_Occurred() ? NULL : PyBytes_AsString(PyTuple_GetItem(found, 0));
        if (packed.fixed && PyTuple_GetItem(found, 2) != Py_False
            && !ns_holds(ring_of(post), ns_place_of_sizes(packed.fixed)))
            packed.fixed = NULL;
    }
    Py_XDECREF(key);
    return packed;
}

static int64_t record_packed(const Post *post, ns_packed packed, uint64_t group)
{
    ns_channel *channel = ((Channel *)post->channel)->channel;
    if (!packed.fixed)
        return -1;
    unsigned flags = ns_thread_flags();
    return packed.signature ? ns_post(channel, packed.fixed, packed.signature, 0, flags, group, 0)
                            : ns_post_p2p(channel, packed.fixed, 0, flags, group, 0);
}

static int64_t record_planned(const Post *post, const ns_planned *call, PyObject *place,
                              uint64_t group)
{
    ns_packed packed = ns_seen_find(post->seen, ring_of(post), call, place);
    if (!packed.fixed) {
        PyObject *parameters = as_tuple(call);
        if (parameters)
            packed = template_of(post, parameters, place);
        Py_XDECREF(parameters);
        if (packed.fixed)
            ns_seen_add(post->seen, call, place, packed);
    }
    return record_packed(post, packed, group);
}

static int64_t record_by(const Method *method, const Post *post, const ns_arguments *given)
{
    int64_t position = -1;
    uint64_t group;
    ns_planned call;
    PyObject *place =
        is_capturing(post) || !ns_group_open(method->groups, &group) ? NULL : ns_place_here();
    if (!place)
        return -1;
    if (read_planned(method, given, &call)) {
        position = record_planned(post, &call, place, group);
        Py_DECREF(call.shape);
        Py_DECREF(call.dtype);
    } else if (!PyErr_Occurred() && method->read != Py_None) {
        PyObject *parameters = read_parameters(method, given);
        if (parameters)
            position = record_packed(post, template_of(post, parameters, place), group);
        Py_XDECREF(parameters);
    }
    return position;
}

bool ns_is_method(PyObject *object)
{
    return Py_TYPE(object) == method_type;
}

bool ns_record_call(PyObject *self, const ns_arguments *given, ns_recorded *call)
{
    const Method *method = (Method *)self;
    PyObject *thing = ns_positional_count(given) ? given->args[0] : NULL;
    call->position = -1;
    if (thing && !ns_is_thread_in(method->suppressing)) {
        Post *post = (Post *)ns_addresses_find(method->known, thing);
        if (post && Py_TYPE(post) == post_type) {
            Py_INCREF(post);
            call->position = record_by(method, post, given);
            call->handle = post->handle;
            call->channel = ((Channel *)post->channel)->channel;
            call->waits = post->waits;
            if (call->position >= 0)
                Py_INCREF(call->handle);
            Py_DECREF(post);
        }
    }
    if (call->position >= 0)
        return true;
    PyErr_Clear();
    return false;
}

/* Names are interned in C and in the program's code, and live as long as the process. */
static ns_parameter named(ns_parameter parameter, PyObject *name)
{
    if (name && PyUnicode_Check(name)) {
        Py_INCREF(name);
        PyUnicode_InternInPlace(&name);
        parameter.name = name;
    }
    return parameter;
}

PyObject *ns_posting(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *known, *read, *groups, *suppressing, *plan, *op = NULL, *plain = NULL, *modes = NULL;
    PyObject *names[3] = {NULL, NULL, NULL};
    ns_parameter tensor = {0}, redop = {0}, sizes = {0};
    if (!PyArg_ParseTuple(args, "OOO!O!O|O!O!", &known, &read, &PyDict_Type, &groups, &PyDict_Type,
                          &suppressing, &plan, &PyDict_Type, &plain, &PyTuple_Type, &modes))
        return NULL;
    if (plain && !modes) {
        PyErr_SetString(PyExc_TypeError, "an operator has modes");
        return NULL;
    }
    if (!ns_is_addresses(known)) {
        PyErr_SetString(PyExc_TypeError, "not a dict by id");
        return NULL;
    }
    if (plan != Py_None
        && !PyArg_ParseTuple(plan, "Unnn(OOO)", &op, &tensor.at, &redop.at, &sizes.at, &names[0],
                             &names[1], &names[2]))
        return NULL;
    Method *made = PyObject_New(Method, method_type);
    if (!made)
        return NULL;
    made->known = known;
    made->read = read;
    made->groups = groups;
    made->suppressing = suppressing;
    made->op = op;
    made->tensor = named(tensor, names[0]);
    made->redop = named(redop, names[1]);
    made->sizes = named(sizes, names[2]);
    made->plain = plain;
    made->modes = modes;
    Py_XINCREF(op);
    Py_XINCREF(plain);
    Py_XINCREF(modes);
    Py_INCREF(known);
    Py_INCREF(read);
    Py_INCREF(groups);
    Py_INCREF(suppressing);
    return (PyObject *)made;
}

PyObject *ns_post_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *channel, *templates, *capturing, *handle;
    if (!PyArg_ParseTuple(args, "O!O!OO", ns_channel_type, &channel, &PyDict_Type, &templates,
                          &capturing, &handle))
        return NULL;
    PyObject *waits = PyObject_GetAttr(handle, waits_name);
    int always = !waits ? -1 : waits == Py_None ? -1 : PyObject_IsTrue(waits);
    Py_XDECREF(waits);
    Post *made = PyErr_Occurred() ? NULL : PyObject_New(Post, post_type);
    if (!made)
        return NULL;
    made->waits = always;
    made->seen = ns_seen_new();
    made->handle = handle;
    Py_INCREF(handle);
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
    Py_DECREF(method->suppressing);
    Py_XDECREF(method->op);
    Py_XDECREF(method->plain);
    Py_XDECREF(method->modes);
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
    Py_DECREF(post->handle);
    ns_seen_free(post->seen);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void setter_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(((Setter *)self)->assign);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef setter_methods[] = {
    {"assign", (PyCFunction)(void (*)(void))assign, METH_FASTCALL, "Assign and remember a value."},
    {0},
};
static PyType_Slot setter_slots[] = {
    {Py_tp_dealloc, setter_free}, {Py_tp_methods, setter_methods}, {0},
};
static PyType_Slot method_slots[] = {{Py_tp_dealloc, method_free}, {0}};
static PyType_Slot post_slots[] = {{Py_tp_dealloc, post_free}, {0}};

enum { FLAGS = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION };

static PyType_Spec method_spec = {"ncclscope.native._core.Method", sizeof(Method), 0, FLAGS,
                                  method_slots};
static PyType_Spec post_spec = {"ncclscope.native._core.Post", sizeof(Post), 0, FLAGS, post_slots};

static PyType_Spec setter_spec = {"ncclscope.native._core.Setter", sizeof(Setter), 0, FLAGS,
                                  setter_slots};

bool ns_posting_ready(void)
{
    shape_name = PyUnicode_InternFromString("shape");
    dtype_name = PyUnicode_InternFromString("dtype");
    meta_name = PyUnicode_InternFromString("is_meta");
    waits_name = PyUnicode_InternFromString("waits");
    usual_redop = PyUnicode_InternFromString("sum");
    redop_names = PyDict_New();
    setter_type = (PyTypeObject *)PyType_FromSpec(&setter_spec);
    method_type = (PyTypeObject *)PyType_FromSpec(&method_spec);
    post_type = (PyTypeObject *)PyType_FromSpec(&post_spec);
    return shape_name && dtype_name && meta_name && waits_name && usual_redop && redop_names && setter_type && method_type
           && post_type;
}
