#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include "noted.h"

#include "module.h"

#include <stdlib.h>

/* The slot of one kind of activity in a ring. */
typedef struct Activity {
    PyObject_HEAD
    ns_ring *ring; /* lives as long as the process */
    uint32_t offset, name;
    uint64_t turns; /* how often it has begun */
} Activity;

struct ns_noted {
    PyObject *read, *open;
    PyObject *slot, *words; /* of activity.py, from the first note on; else NULL */
    Activity *activity;     /* of the slot; NULL for one that is not in the file */
};

static PyTypeObject *activity_type;
static PyObject *core_name, *words_name;

static void begin(Activity *self, ns_note *note)
{
    note->turn = ++self->turns;
    ns_store_activity(self->ring, self->offset, self->name, note->turn, note->since, 0, note->number,
                      (uint32_t)note->detail);
}

static void end(const Activity *self, const ns_note *note)
{
    /* Unless it has begun again since. */
    if (note->turn == self->turns)
        ns_store_activity(self->ring, self->offset, self->name, note->turn, note->since,
                          ns_now(self->ring), note->number, (uint32_t)note->detail);
}

/* --- how a method's calls are noted --------------------------------------------------------------- */

ns_noted *ns_noted_new(PyObject *read, PyObject *open)
{
    ns_noted *made = calloc(1, sizeof *made);
    if (!made) {
        PyErr_NoMemory();
        return NULL;
    }
    made->read = read;
    made->open = open;
    Py_INCREF(read);
    Py_INCREF(open);
    return made;
}

int ns_noted_visit(const ns_noted *noted, visitproc visit, void *arg)
{
    Py_VISIT(noted->read);
    Py_VISIT(noted->open);
    return 0;
}

void ns_noted_forget(ns_noted *noted)
{
    Py_CLEAR(noted->slot);
    Py_CLEAR(noted->words);
    PyObject *activity = (PyObject *)noted->activity;
    noted->activity = NULL;
    Py_XDECREF(activity);
}

void ns_noted_free(ns_noted *noted)
{
    if (!noted)
        return;
    ns_noted_forget(noted);
    Py_DECREF(noted->read);
    Py_DECREF(noted->open);
    free(noted);
}

/* Find the slot; false without tracing, or with an error set. */
static bool open_slot(ns_noted *noted)
{
    PyObject *slot = PyObject_CallNoArgs(noted->open);
    PyObject *core = slot && slot != Py_None ? PyObject_GetAttr(slot, core_name) : NULL;
    PyObject *words = core ? PyObject_GetAttr(slot, words_name) : NULL;
    bool found = words && PyDict_Check(words);
    if (found) {
        ns_noted_forget(noted);
        noted->slot = slot;
        noted->words = words;
        if (Py_TYPE(core) == activity_type) {
            noted->activity = (Activity *)core;
            Py_INCREF(core);
        }
        Py_INCREF(slot);
        Py_INCREF(words);
    }
    Py_XDECREF(slot);
    Py_XDECREF(core);
    Py_XDECREF(words);
    return found;
}

/* Return the number of a detail; 0 with an error set. */
static uint64_t word_of(const ns_noted *noted, PyObject *detail)
{
    PyObject *word = PyDict_GetItemWithError(noted->words, detail);
    if (word)
        return PyLong_AsUnsignedLong(word);
    if (PyErr_Occurred())
        return 0;
    word = PyObject_CallMethod(noted->slot, "word", "O", detail);
    uint64_t number = word ? PyLong_AsUnsignedLong(word) : 0;
    Py_XDECREF(word);
    return number;
}

static PyObject *details_of(const ns_noted *noted, const ns_arguments *given)
{
    if (PyTuple_Check(noted->read)) {
        Py_INCREF(noted->read);
        return noted->read;
    }
    PyObject *args = ns_positional(given), *named = args ? ns_by_name(given) : NULL;
    PyObject *found =
        named ? PyObject_CallFunctionObjArgs(noted->read, args, named, NULL) : NULL;
    Py_XDECREF(args);
    Py_XDECREF(named);
    return found;
}

static int begin_found(ns_noted *noted, PyObject *found, ns_note *to)
{
    PyObject *detail, *number;
    if (!PyArg_ParseTuple(found, "OO", &detail, &number))
        return -1;
    if (!noted->slot && !open_slot(noted))
        return PyErr_Occurred() ? -1 : 0;
    to->slot = noted->slot;
    to->begun = NULL;
    if (noted->activity) {
        to->number = PyLong_AsUnsignedLongLong(number);
        to->detail = PyErr_Occurred() ? 0 : word_of(noted, detail);
        if (PyErr_Occurred() || !noted->activity)
            return PyErr_Occurred() ? -1 : 0;
        to->slot = (PyObject *)noted->activity;
        to->since = ns_now(noted->activity->ring);
        begin(noted->activity, to);
    } else if (!(to->begun = PyObject_CallMethod(noted->slot, "begin", "OO", detail, number))) {
        return -1;
    }
    Py_INCREF(to->slot);
    return 1;
}

int ns_note_begin(ns_noted *noted, const ns_arguments *given, ns_note *to)
{
    PyObject *found = details_of(noted, given);
    int begun = !found ? -1 : found == Py_None ? 0 : begin_found(noted, found, to);
    Py_XDECREF(found);
    return begun;
}

bool ns_note_end(ns_note *note)
{
    PyObject *done = Py_None;
    if (note->begun) {
        done = PyObject_CallMethod(note->slot, "end", "O", note->begun);
        Py_XDECREF(done);
        Py_DECREF(note->begun);
    } else {
        end((Activity *)note->slot, note);
    }
    Py_DECREF(note->slot);
    return done != NULL;
}

/* --- for Python ------------------------------------------------------------------------------- */

PyObject *ns_activity_new(PyObject *ring, PyObject *args)
{
    unsigned int offset, name;
    if (!PyArg_ParseTuple(args, "II", &offset, &name))
        return NULL;
    Activity *made = PyObject_New(Activity, activity_type);
    if (made) {
        made->ring = ((Ring *)ring)->ring;
        made->offset = offset;
        made->name = name;
        made->turns = 0;
    }
    return (PyObject *)made;
}

static PyObject *begin_given(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "an activity has since when it lasts, a number and a detail");
        return NULL;
    }
    ns_note note = {.since = PyLong_AsUnsignedLongLong(args[0]),
                    .number = ns_bounded(args[1]),
                    .detail = PyLong_AsUnsignedLong(args[2])};
    if (PyErr_Occurred())
        return NULL;
    if (!note.since)
        note.since = ns_now(((Activity *)self)->ring);
    begin((Activity *)self, &note);
    return Py_BuildValue("(KKKK)", (unsigned long long)note.turn, (unsigned long long)note.since,
                         (unsigned long long)note.number, (unsigned long long)note.detail);
}

static PyObject *end_given(PyObject *self, PyObject *begun)
{
    unsigned long long turn, since, number;
    unsigned int detail;
    if (!PyArg_ParseTuple(begun, "KKKI", &turn, &since, &number, &detail))
        return NULL;
    end((Activity *)self, &(ns_note){.turn = turn, .since = since, .number = number, .detail = detail});
    Py_RETURN_NONE;
}

static void activity_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)(void (*)(void))begin_given, METH_FASTCALL,
     "Record that it begins, and return what end() takes."},
    {"end", end_given, METH_O, "Record that it has ended, unless it has begun again."},
    {0},
};
static PyType_Slot slots[] = {{Py_tp_dealloc, activity_free}, {Py_tp_methods, methods}, {0}};
static PyType_Spec spec = {
    "ncclscope.native._core.Activity", sizeof(Activity), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots,
};

bool ns_noted_ready(void)
{
    core_name = PyUnicode_InternFromString("core");
    words_name = PyUnicode_InternFromString("words");
    activity_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return core_name && words_name && activity_type;
}
