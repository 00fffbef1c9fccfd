#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include "addresses.h"

#include <stdint.h>
#include <stdlib.h>

typedef struct Slot {
    const void *key;
    PyObject *value; /* NULL: empty */
} Slot;

/* Open addressing with linear probing, at most half full. */
typedef struct Addresses {
    PyObject_HEAD
    Slot *slots;
    size_t size; /* a power of two; 0 before the first entry */
    size_t count;
} Addresses;

enum { FIRST_SIZE = 64 };

static PyTypeObject *addresses_type;

static size_t home(const Addresses *self, const void *key)
{
    return (size_t)(((uint64_t)(uintptr_t)key >> 3) * 0x9E3779B97F4A7C15 >> 32) & (self->size - 1);
}

/* Return the slot of a key, or the empty one where it would be; the table must have slots. */
static Slot *slot_of(const Addresses *self, const void *key)
{
    size_t at = home(self, key);
    while (self->slots[at].value && self->slots[at].key != key)
        at = (at + 1) & (self->size - 1);
    return &self->slots[at];
}

static bool grow(Addresses *self)
{
    Addresses larger = {.size = self->size ? 2 * self->size : FIRST_SIZE};
    larger.slots = calloc(larger.size, sizeof *larger.slots);
    if (!larger.slots) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t at = 0; at < self->size; at++)
        if (self->slots[at].value)
            *slot_of(&larger, self->slots[at].key) = self->slots[at];
    free(self->slots);
    self->slots = larger.slots;
    self->size = larger.size;
    return true;
}

bool ns_is_addresses(PyObject *object)
{
    return Py_TYPE(object) == addresses_type;
}

PyObject *ns_addresses_new(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    Addresses *made = PyObject_New(Addresses, addresses_type);
    if (made) {
        made->slots = NULL;
        made->size = made->count = 0;
    }
    return (PyObject *)made;
}

Py_ssize_t ns_addresses_count(const PyObject *self)
{
    return (Py_ssize_t)((const Addresses *)self)->count;
}

PyObject *ns_addresses_find(const PyObject *object, const void *key)
{
    const Addresses *self = (const Addresses *)object;
    return self->count ? slot_of(self, key)->value : NULL;
}

bool ns_addresses_put(PyObject *object, const void *key, PyObject *value)
{
    Addresses *self = (Addresses *)object;
    if (2 * self->count >= self->size && !grow(self))
        return false;
    Slot *slot = slot_of(self, key);
    PyObject *before = slot->value;
    self->count += !before;
    slot->key = key;
    slot->value = value;
    Py_INCREF(value);
    Py_XDECREF(before); /* last: it may run code that comes here again */
    return true;
}

/* Take an entry out and return its value, a new reference; NULL without an error if there is none. */
static PyObject *take(Addresses *self, const void *key)
{
    Slot *gap = self->count ? slot_of(self, key) : NULL;
    PyObject *value = gap ? gap->value : NULL;
    if (!value)
        return NULL;
    self->count--;
    gap->value = NULL;
    /* Entries behind it that have been pushed over its place move up. */
    size_t empty = (size_t)(gap - self->slots), mask = self->size - 1;
    for (size_t at = (empty + 1) & mask; self->slots[at].value; at = (at + 1) & mask) {
        size_t wanted = home(self, self->slots[at].key);
        if (((at - wanted) & mask) < ((at - empty) & mask))
            continue;
        self->slots[empty] = self->slots[at];
        self->slots[at].value = NULL;
        empty = at;
    }
    return value;
}

void ns_addresses_remove(PyObject *self, const void *key)
{
    PyObject *value = take((Addresses *)self, key);
    Py_XDECREF(value);
}

/* --- for Python: the methods of a dict -------------------------------------------------------- */

static Py_ssize_t length(PyObject *self)
{
    return ns_addresses_count(self);
}

static int set_item(PyObject *self, PyObject *key, PyObject *value)
{
    void *address = PyLong_AsVoidPtr(key);
    if (PyErr_Occurred())
        return -1;
    if (value)
        return ns_addresses_put(self, address, value) ? 0 : -1;
    ns_addresses_remove(self, address);
    return 0;
}

static PyObject *get(PyObject *self, PyObject *key)
{
    void *address = PyLong_AsVoidPtr(key);
    if (PyErr_Occurred())
        return NULL;
    PyObject *found = ns_addresses_find(self, address);
    found = found ? found : Py_None;
    Py_INCREF(found);
    return found;
}

static PyObject *pop(PyObject *self, PyObject *args)
{
    PyObject *key, *otherwise, *found;
    if (!PyArg_ParseTuple(args, "OO", &key, &otherwise))
        return NULL;
    void *address = PyLong_AsVoidPtr(key);
    if (PyErr_Occurred())
        return NULL;
    found = take((Addresses *)self, address);
    if (!found)
        Py_INCREF(otherwise);
    return found ? found : otherwise;
}

static PyObject *items(PyObject *object, PyObject *Py_UNUSED(none))
{
    const Addresses *self = (Addresses *)object;
    PyObject *list = PyList_New(0);
    /* Making an object may free others, whose end may change this table. */
    for (size_t at = 0; list && at < self->size; at++) {
        PyObject *value = self->slots[at].value;
        if (!value)
            continue;
        Py_INCREF(value);
        PyObject *pair = Py_BuildValue("(NN)", PyLong_FromVoidPtr((void *)self->slots[at].key), value);
        if (!pair || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *clear(PyObject *object, PyObject *Py_UNUSED(none))
{
    Addresses *self = (Addresses *)object;
    Slot *slots = self->slots;
    size_t size = self->size;
    self->slots = NULL;
    self->size = self->count = 0;
    for (size_t at = 0; at < size; at++)
        Py_XDECREF(slots[at].value);
    free(slots);
    Py_RETURN_NONE;
}

static void addresses_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(clear(self, NULL));
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"get", get, METH_O, "Return the value of an id, or None."},
    {"pop", pop, METH_VARARGS, "Remove an id and return its value, or the default."},
    {"items", items, METH_NOARGS, "Return a list of all ids and values."},
    {"clear", clear, METH_NOARGS, "Remove everything."},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, addresses_free}, {Py_tp_methods, methods},        {Py_mp_length, length},
    {Py_mp_ass_subscript, set_item}, {0},
};
static PyType_Spec spec = {
    "ncclscope.native._core.Addresses", sizeof(Addresses), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots,
};

bool ns_addresses_ready(void)
{
    addresses_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return addresses_type != NULL;
}
