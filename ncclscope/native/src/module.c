/* The ring's core for Python, by the Limited API: see ncclscope/ring/native_writer.py. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ring.h"

#include <stdlib.h>
#include <string.h>

#include "addresses.h"
#include "frames.h"
#include "grouped.h"
#include "kept.h"
#include "module.h"
#include "noted.h"
#include "place.h"

PyTypeObject *ns_ring_type, *ns_channel_type, *ns_part_type;

/* The fields of a record that depend on the moment of the call. */
typedef struct Moment {
    uint64_t state, flags, group, graph;
} Moment;

/* --- arguments ------------------------------------------------------------------------------ */

static int check_count(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most)
{
    if (given >= least && given <= most)
        return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments for %zd to %zd", given, least, most);
    return 0;
}

static uint64_t number(PyObject *const *args, Py_ssize_t given, Py_ssize_t at)
{
    return at < given ? PyLong_AsUnsignedLongLongMask(args[at]) : 0;
}

/* The arguments from `at` on as fields of a record's moment; false with an error set. */
static bool moment_of(PyObject *const *args, Py_ssize_t given, Py_ssize_t at, Moment *to)
{
    to->state = number(args, given, at);
    to->flags = number(args, given, at + 1);
    to->group = number(args, given, at + 2);
    to->graph = number(args, given, at + 3);
    if (PyErr_Occurred())
        return false;
    if (to->state <= 2 && to->flags <= UINT8_MAX)
        return true;
    PyErr_SetString(PyExc_ValueError, "the state is 0 to 2, and flags have 8 bits");
    return false;
}

static const char *fixed_of(PyObject *object)
{
    char *data;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(object, &data, &length) < 0)
        return NULL;
    if (length == NS_FIXED)
        return data;
    PyErr_SetString(PyExc_ValueError, "packed parameters have 48 bytes");
    return NULL;
}

static ns_channel *channel_of(PyObject *object)
{
    if (Py_TYPE(object) == ns_channel_type)
        return ((Channel *)object)->channel;
    PyErr_SetString(PyExc_TypeError, "not a channel of this writer");
    return NULL;
}

/* --- calls ------------------------------------------------------------------------------- */

/* Whether a captured call has become part of a CUDA graph, which Python keeps; -1 for an error. */
static int taken(Ring *self, PyObject *channel, PyObject *fixed, PyObject *signature,
                 uint64_t group)
{
    if (!self->capture || self->capture == Py_None)
        return 0;
    PyObject *found = PyObject_CallFunction(self->capture, "OOOK", channel, fixed, signature,
                                            (unsigned long long)group);
    if (!found)
        return -1;
    int is_taken = PyObject_IsTrue(found);
    Py_DECREF(found);
    return is_taken;
}

static PyObject *post(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (!check_count(given, 3, 7))
        return NULL;
    ns_channel *channel = channel_of(args[0]);
    const char *fixed = channel ? fixed_of(args[1]) : NULL;
    Moment moment;
    if (!fixed || !moment_of(args, given, 3, &moment))
        return NULL;
    uint64_t signature = number(args, given, 2);
    if (PyErr_Occurred())
        return NULL;
    if (moment.flags & NS_CAPTURED) {
        int is_taken = taken((Ring *)self, args[0], args[1], args[2], moment.group);
        if (is_taken)
            return is_taken < 0 ? NULL : PyLong_FromLong(-1);
    }
    return PyLong_FromLongLong(ns_post(channel, fixed, signature, (unsigned)moment.state,
                                       (unsigned)moment.flags | ns_thread_flags(),
                                       moment.group, (uint32_t)moment.graph));
}

static PyObject *post_p2p(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (!check_count(given, 2, 6))
        return NULL;
    ns_channel *channel = channel_of(args[0]);
    const char *fixed = channel ? fixed_of(args[1]) : NULL;
    Moment moment;
    if (!fixed || !moment_of(args, given, 2, &moment))
        return NULL;
    if (moment.flags & NS_CAPTURED) {
        PyObject *none = PyLong_FromLong(0);
        int is_taken = none ? taken((Ring *)self, args[0], args[1], none, moment.group) : -1;
        Py_XDECREF(none);
        if (is_taken)
            return is_taken < 0 ? NULL : PyLong_FromLong(-1);
    }
    return PyLong_FromLongLong(ns_post_p2p(channel, fixed, (unsigned)moment.state,
                                           (unsigned)moment.flags | ns_thread_flags(),
                                           moment.group, (uint32_t)moment.graph));
}

uint64_t ns_bounded(PyObject *number)
{
    static const long long most = ((long long)1 << 62) - 1; /* as layout.MOST */
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow)
        value = overflow > 0 ? most : 0;
    return (uint64_t)(value < 0 ? 0 : value > most ? most : value);
}

static PyObject *post_step(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (!check_count(given, 3, 3))
        return NULL;
    uint64_t step = ns_bounded(args[0]);
    uint64_t held = args[1] == Py_None ? 0 : ns_bounded(args[1]) + 1;
    int dummy = PyObject_IsTrue(args[2]);
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromLongLong(ns_post_step(((Ring *)self)->ring, step, held, dummy));
}

enum { MOST_PARTS = NS_MAX_COMMS };

static PyObject *post_replay(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    static const char *const wrong = "parts are a list of parts of this writer";
    ns_part parts[16], *all = parts;
    if (!check_count(given, 2, 2))
        return NULL;
    Py_ssize_t count = PyList_Check(args[0]) ? PyList_Size(args[0]) : -1;
    if (count < 0 || count > MOST_PARTS) {
        PyErr_SetString(PyExc_TypeError, wrong);
        return NULL;
    }
    if (count > 16 && !(all = malloc((size_t)count * sizeof *all)))
        return PyErr_NoMemory();
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *part = PyList_GetItem(args[0], at);
        if (Py_TYPE(part) != ns_part_type) {
            PyErr_SetString(PyExc_TypeError, wrong);
            break;
        }
        all[at] = ((Part *)part)->part;
    }
    int64_t position = -1;
    uint64_t replay = number(args, given, 1);
    if (!PyErr_Occurred())
        position = ns_post_replay(((Ring *)self)->ring, all, (size_t)count, replay);
    if (all != parts)
        free(all);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(position);
}

static PyObject *advance(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (!check_count(given, 2, 2))
        return NULL;
    long long position = PyLong_AsLongLong(args[0]);
    uint64_t state = number(args, given, 1);
    if (PyErr_Occurred())
        return NULL;
    if (state <= 2)
        ns_advance(((Ring *)self)->ring, position, (unsigned)state);
    Py_RETURN_NONE;
}

static PyObject *withdraw(PyObject *self, PyObject *args)
{
    PyObject *channel;
    long long position;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!L", ns_channel_type, &channel, &position))
        return NULL;
    return PyBool_FromLong(ns_withdraw(((Channel *)channel)->channel, position));
}

/* --- texts and lists -------------------------------------------------------------------------- */

/* The UTF-8 bytes of a text, as str.encode("utf-8", "replace"). */
static PyObject *encoded(PyObject *text, char **data, Py_ssize_t *length)
{
    PyObject *bytes = PyUnicode_AsEncodedString(text, "utf-8", "replace");
    if (bytes && PyBytes_AsStringAndSize(bytes, data, length) < 0)
        Py_CLEAR(bytes);
    return bytes;
}

static PyObject *text(PyObject *self, PyObject *args)
{
    int kind;
    char *data;
    Py_ssize_t length;
    PyObject *given, *bytes;
    if (!PyArg_ParseTuple(args, "iO", &kind, &given))
        return NULL;
    if (given == Py_None)
        return PyLong_FromLong(0);
    if (!(bytes = encoded(given, &data, &length)))
        return NULL;
    uint32_t found = ns_text(((Ring *)self)->ring, (enum ns_kind)kind, data, (size_t)length);
    Py_DECREF(bytes);
    return PyLong_FromUnsignedLong(found);
}

static PyObject *knows(PyObject *self, PyObject *args)
{
    int kind;
    char *data;
    Py_ssize_t length;
    PyObject *given, *bytes;
    if (!PyArg_ParseTuple(args, "iO", &kind, &given))
        return NULL;
    if (!(bytes = encoded(given, &data, &length)))
        return NULL;
    bool known = ns_knows(((Ring *)self)->ring, (enum ns_kind)kind, data, (size_t)length);
    Py_DECREF(bytes);
    return PyBool_FromLong(known);
}

static PyObject *sizes(PyObject *self, PyObject *given)
{
    int64_t some[64], *all = some;
    Py_ssize_t count = PyTuple_Check(given) ? PyTuple_Size(given) : -1;
    if (count < 0) {
        PyErr_SetString(PyExc_TypeError, "sizes are a tuple");
        return NULL;
    }
    if (count > 64 && !(all = malloc((size_t)count * sizeof *all)))
        return PyErr_NoMemory();
    uint32_t place = 0;
    for (Py_ssize_t at = 0; at < count && !PyErr_Occurred(); at++)
        all[at] = PyLong_AsLongLong(PyTuple_GetItem(given, at));
    if (!PyErr_Occurred())
        place = ns_sizes(((Ring *)self)->ring, all, (size_t)count);
    else if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Clear(); /* no list is better than a wrong one */
    if (all != some)
        free(all);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(place);
}

static PyObject *holds(PyObject *self, PyObject *place)
{
    unsigned long at = PyLong_AsUnsignedLong(place);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(ns_holds(((Ring *)self)->ring, (uint32_t)at));
}

static PyObject *sizes_of(PyObject *self, PyObject *place)
{
    ns_ring *ring = ((Ring *)self)->ring;
    unsigned long at = PyLong_AsUnsignedLong(place);
    if (PyErr_Occurred())
        return NULL;
    int64_t count = ns_sizes_of(ring, (uint32_t)at, NULL, 0);
    if (count < 0)
        Py_RETURN_NONE;
    int64_t *all = malloc((size_t)(count ? count : 1) * sizeof *all);
    if (!all)
        return PyErr_NoMemory();
    ns_sizes_of(ring, (uint32_t)at, all, (size_t)count);
    PyObject *found = PyTuple_New((Py_ssize_t)count);
    for (int64_t item = 0; found && item < count; item++)
        if (PyTuple_SetItem(found, (Py_ssize_t)item, PyLong_FromLongLong(all[item])) < 0)
            Py_CLEAR(found);
    free(all);
    return found;
}

/* --- communicators -------------------------------------------------------------------------- */

static PyObject *channel(PyObject *self, PyObject *args)
{
    const char *json;
    Py_ssize_t length;
    unsigned int members;
    if (!PyArg_ParseTuple(args, "s#I", &json, &length, &members))
        return NULL;
    ns_channel *opened = ns_channel_open(((Ring *)self)->ring, json, (size_t)length, members);
    if (!opened)
        return PyErr_NoMemory();
    Channel *made = PyObject_New(Channel, ns_channel_type);
    if (made)
        made->channel = opened;
    return (PyObject *)made;
}

static PyObject *update_channel(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *channel;
    const char *json;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "O!s#", ns_channel_type, &channel, &json, &length))
        return NULL;
    ns_channel_update(((Channel *)channel)->channel, json, (size_t)length);
    Py_RETURN_NONE;
}

static PyObject *close_channel(PyObject *Py_UNUSED(self), PyObject *object)
{
    ns_channel *closed = channel_of(object);
    if (!closed)
        return NULL;
    ns_channel_close(closed);
    Py_RETURN_NONE;
}

static PyObject *reopen_channel(PyObject *Py_UNUSED(self), PyObject *object)
{
    ns_channel *closed = channel_of(object);
    if (!closed)
        return NULL;
    ns_channel_reopen(closed);
    Py_RETURN_NONE;
}

static PyObject *channel_get(PyObject *self, void *field)
{
    const ns_channel *channel = ((Channel *)self)->channel;
    switch ((int)(intptr_t)field) {
    case 0:
        return PyLong_FromUnsignedLong(ns_index(channel));
    case 1:
        return PyLong_FromUnsignedLongLong(channel->seq);
    case 2:
        return PyLong_FromUnsignedLongLong(channel->hash);
    case 3:
        return PyLong_FromUnsignedLongLong(channel->p2p);
    default:
        return PyLong_FromUnsignedLongLong(channel->carried);
    }
}

static void simple_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* --- replays ---------------------------------------------------------------------------------- */

static bool fill(uint64_t *to, PyObject *from, Py_ssize_t count)
{
    for (Py_ssize_t at = 0; at < count; at++)
        to[at] = PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(from, at));
    return !PyErr_Occurred();
}

static PyObject *part(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *channel, *powers, *hashes;
    const char *repeats;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "OO!O!y#", &channel, &PyTuple_Type, &powers, &PyTuple_Type, &hashes,
                          &repeats, &length))
        return NULL;
    ns_channel *mine = channel_of(channel);
    Py_ssize_t count = PyTuple_Size(powers);
    if (!mine)
        return NULL;
    if (count < 1 || PyTuple_Size(hashes) != count || length != NS_FIXED) {
        PyErr_SetString(PyExc_ValueError, "powers and hashes go from none to all calls");
        return NULL;
    }
    Part *made = PyObject_New(Part, ns_part_type);
    if (!made)
        return NULL;
    made->numbers = malloc((size_t)count * 2 * sizeof *made->numbers);
    made->owner = channel;
    Py_INCREF(channel);
    if (!made->numbers || !fill(made->numbers, powers, count)
        || !fill(made->numbers + count, hashes, count)) {
        Py_DECREF(made);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    made->part = (ns_part){.channel = mine,
                           .count = (uint64_t)count - 1,
                           .powers = made->numbers,
                           .hashes = made->numbers + count};
    memcpy(made->part.repeats, repeats, NS_FIXED);
    return (PyObject *)made;
}

static void part_free(PyObject *self)
{
    free(((Part *)self)->numbers);
    Py_XDECREF(((Part *)self)->owner);
    simple_free(self);
}

static PyObject *part_channel(PyObject *self, void *Py_UNUSED(unused))
{
    PyObject *owner = ((Part *)self)->owner;
    Py_INCREF(owner);
    return owner;
}

/* --- the ring --------------------------------------------------------------------------------- */

static PyObject *open_ring(PyObject *Py_UNUSED(module), PyObject *args)
{
    int descriptor, device;
    unsigned long long capacity, clock;
    const char *path;
    char reason[NS_REASON] = "";
    if (!PyArg_ParseTuple(args, "iKpyK", &descriptor, &capacity, &device, &path, &clock))
        return NULL;
    ns_ring *ring = ns_ring_map(descriptor, capacity, device, clock, reason);
    if (!ring) {
        PyErr_SetString(PyExc_OSError, reason);
        return NULL;
    }
    ns_ring_set_path(ring, path);
    Ring *made = PyObject_New(Ring, ns_ring_type);
    if (made) {
        made->ring = ring;
        made->capture = NULL;
    }
    return (PyObject *)made;
}

static void ring_free(PyObject *self)
{
    Py_XDECREF(((Ring *)self)->capture);
    simple_free(self); /* the file stays mapped: the plugin may still write */
}

static PyObject *describe(PyObject *self, PyObject *json)
{
    char *data;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(json, &data, &length) < 0)
        return NULL;
    return PyBool_FromLong(ns_describe(((Ring *)self)->ring, data, (size_t)length));
}

#define PLAIN(name, call)                                                                         \
    static PyObject *name(PyObject *self, PyObject *Py_UNUSED(unused))                            \
    {                                                                                             \
        call(((Ring *)self)->ring);                                                               \
        Py_RETURN_NONE;                                                                           \
    }
PLAIN(publish, ns_ring_publish)
PLAIN(store_heartbeat, ns_store_heartbeat)
PLAIN(finish, ns_finish)
PLAIN(detach, ns_detach)
PLAIN(write_table, ns_write_table)
PLAIN(set_current, ns_set_current)

static PyObject *ring_position(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(ns_ring_position(((Ring *)self)->ring));
}

static PyObject *ring_refused(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(ns_ring_refused(((Ring *)self)->ring));
}

static PyObject *ring_used(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(ns_strings_used(((Ring *)self)->ring));
}

static PyObject *ring_sites(PyObject *self, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(ns_sites_used(((Ring *)self)->ring));
}

static PyObject *ring_capture(PyObject *self, void *Py_UNUSED(unused))
{
    PyObject *capture = ((Ring *)self)->capture ? ((Ring *)self)->capture : Py_None;
    Py_INCREF(capture);
    return capture;
}

static int ring_set_capture(PyObject *self, PyObject *capture, void *Py_UNUSED(unused))
{
    PyObject *before = ((Ring *)self)->capture;
    Py_XINCREF(capture);
    ((Ring *)self)->capture = capture;
    Py_XDECREF(before);
    return 0;
}

/* --- announcements ------------------------------------------------------------------------------ */

static PyObject *announce(PyObject *Py_UNUSED(module), PyObject *object)
{
    /* A channel of the writer in Python is in no ring of the core. */
    ns_announce(Py_TYPE(object) == ns_channel_type ? ((Channel *)object)->channel : NULL);
    Py_RETURN_NONE;
}

static PyObject *is_announced(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    ns_channel *channel;
    return PyBool_FromLong(ns_announced(&channel));
}

static PyObject *conclude(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    ns_conclude();
    Py_RETURN_NONE;
}

static PyObject *sign(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *op, *dtype, *redop, *agreed;
    int root;
    if (!PyArg_ParseTuple(args, "sssis", &op, &dtype, &redop, &root, &agreed))
        return NULL;
    return PyLong_FromUnsignedLongLong(ns_sign(op, dtype, redop, root, agreed));
}

/* --- the module --------------------------------------------------------------------------------- */

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL

static PyMethodDef ring_methods[] = {
    {"activity", ns_activity_new, METH_VARARGS, "Return the slot of an activity: offset, name."},
    {"advance", FAST(advance), "Set the state of the record at a position."},
    {"store_heartbeat", store_heartbeat, METH_NOARGS, "Store a heartbeat."},
    {"channel", channel, METH_VARARGS, "Return a new channel; its index is 0 without room."},
    {"close_channel", close_channel, METH_O, "Let a later channel take the number of one."},
    {"reopen_channel", reopen_channel, METH_O, "Take back that one was closed."},
    {"describe", describe, METH_O, "Store the process description; False if it is too long."},
    {"detach", detach, METH_NOARGS, "Discard everything from here on."},
    {"finish", finish, METH_NOARGS, "Record a normal exit."},
    {"holds", holds, METH_O, "Return whether a sizes list is not overwritten soon."},
    {"knows", knows, METH_VARARGS, "Return whether a text of a kind has a number."},
    {"post", FAST(post), "Record a collective and return its position."},
    {"post_p2p", FAST(post_p2p), "Record a send or a receive and return its position."},
    {"post_replay", FAST(post_replay), "Record a replay and return its first position."},
    {"post_step", FAST(post_step), "Record a step of the engine and return its position."},
    {"publish", publish, METH_NOARGS, "Write the header."},
    {"set_current", set_current, METH_NOARGS, "Make it the ring of NCCL's plugin, too."},
    {"sizes", sizes, METH_O, "Return the place of a sizes list; 0 without room."},
    {"sizes_of", sizes_of, METH_O, "Return the sizes list at a place; None if it has expired."},
    {"text", text, METH_VARARGS, "Return the number of a text of a kind; 0 without room."},
    {"update_channel", update_channel, METH_VARARGS, "Add to the text of a channel."},
    {"withdraw", withdraw, METH_VARARGS, "Withdraw a call that was not sent."},
    {"write_table", write_table, METH_NOARGS, "Write the table of communicators."},
    {0},
};

static PyGetSetDef ring_fields[] = {
    {"capture", ring_capture, ring_set_capture, "Takes captured calls.", NULL},
    {"position", ring_position, NULL, "Number of records made.", NULL},
    {"refused", ring_refused, NULL, "Number of texts not written.", NULL},
    {"strings_used", ring_used, NULL, "Bytes of texts written.", NULL},
    {"sites_used", ring_sites, NULL, "Bytes of call sites among them.", NULL},
    {0},
};

static PyGetSetDef channel_fields[] = {
    {"index", channel_get, NULL, "Number in the file.", (void *)0},
    {"seq", channel_get, NULL, "Collectives recorded so far.", (void *)1},
    {"hash", channel_get, NULL, "Running hash after them.", (void *)2},
    {"p2p", channel_get, NULL, "Sends and receives recorded so far.", (void *)3},
    {"carried", channel_get, NULL, "Calls that NCCL reported.", (void *)4},
    {0},
};

static PyGetSetDef part_fields[] = {
    {"channel", part_channel, NULL, "The communicator.", NULL},
    {0},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_dealloc, ring_free}, {Py_tp_methods, ring_methods}, {Py_tp_getset, ring_fields}, {0},
};
static PyType_Slot channel_slots[] = {
    {Py_tp_dealloc, simple_free}, {Py_tp_getset, channel_fields}, {0},
};
static PyType_Slot part_slots[] = {
    {Py_tp_dealloc, part_free}, {Py_tp_getset, part_fields}, {0},
};

enum { FLAGS = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION };

static PyType_Spec ring_spec = {"ncclscope.native._core.Ring", sizeof(Ring), 0, FLAGS, ring_slots};
static PyType_Spec channel_spec = {"ncclscope.native._core.Channel", sizeof(Channel), 0, FLAGS,
                                   channel_slots};
static PyType_Spec part_spec = {"ncclscope.native._core.Part", sizeof(Part), 0, FLAGS, part_slots};

static PyMethodDef functions[] = {
    {"addresses", ns_addresses_new, METH_NOARGS, "Return a dict by the id of objects."},
    {"announce", announce, METH_O, "This thread's calls into NCCL belong to a channel's record."},
    {"is_announced", is_announced, METH_NOARGS, "Whether an announced call is open here."},
    {"conclude", conclude, METH_NOARGS, "The announced call has returned."},
    {"open_ring", open_ring, METH_VARARGS, "Map a new file of reserved size as a ring."},
    {"frames", ns_frames_of, METH_O, "Whether the layout of frames in this version is known."},
    {"frames_agree", ns_frames_agree, METH_NOARGS, "Whether frames are what their objects say."},
    {"place_by", ns_place_by, METH_O, "Return the call site, by known frames or by objects."},
    {"places", ns_places, METH_VARARGS, "Use callsite's function that classifies code."},
    {"post_of", ns_post_of, METH_VARARGS, "Return what a method needs to record without Python."},
    {"posting", ns_posting, METH_VARARGS, "Return what records the calls of one method."},
    {"use_capturing", ns_use_capturing, METH_O, "Ask this whether a CUDA graph is captured."},
    {"replaced", ns_replaced, METH_VARARGS, "Return what replaces a method that enqueues."},
    {"grouped", ns_grouped, METH_VARARGS, "Return what replaces a method that opens or ends a group."},
    {"kernel", ns_kernel, METH_VARARGS, "Return a kernel of torch's dispatcher."},
    {"elsewhere", ns_elsewhere, METH_O, "Whether this is the call site of threads without one."},
    {"noted", ns_noted_method, METH_VARARGS, "Return what replaces a method that is noted."},
    {"waited", ns_waited, METH_VARARGS, "Return what replaces a method that waits."},
    {"recorder", ns_recorder, METH_VARARGS, "Return an object with Tracer.record() in C."},
    {"setter", ns_setter, METH_O, "Return an object that assigns a property and remembers it."},
    {"sign", sign, METH_VARARGS, "Return the signature of a call as the plugin computes it."},
    {"note_redop", ns_note_redop, METH_VARARGS, "Remember what was assigned to an object."},
    {"take_noted", ns_take_noted, METH_O, "Return what was just assigned to an object, once."},
    {"use_threads", ns_use_threads, METH_VARARGS, "Use these threads, and this class of others."},
    {"thread_number", ns_thread_number, METH_NOARGS, "Return the number of this thread, or 0."},
    {"use_redops", ns_use_redops, METH_O, "Use these names of reductions, by id."},
    {"part", part, METH_VARARGS, "Return the calls of a graph on one communicator."},
    {0},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_core", "The ring's core in C.", -1, functions, 0, 0, 0, 0,
};

static PyTypeObject *add_type(PyObject *to, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (!type)
        return NULL;
    Py_INCREF(type);
    if (PyModule_AddObject(to, name, type) < 0) {
        Py_DECREF(type);
        Py_DECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *made = PyModule_Create(&module);
    if (!made)
        return NULL;
    ns_ring_type = add_type(made, "Ring", &ring_spec);
    ns_channel_type = add_type(made, "Channel", &channel_spec);
    ns_part_type = add_type(made, "Part", &part_spec);
    if (!ns_ring_type || !ns_channel_type || !ns_part_type || !ns_record_ready()
        || !ns_posting_ready() || !ns_kept_ready() || !ns_addresses_ready()
        || !ns_replaced_ready() || !ns_kernel_ready() || !ns_noted_ready())
        Py_CLEAR(made);
    return made;
}
