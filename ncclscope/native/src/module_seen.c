#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include "seen.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 64, MOST_DIMS = 4, LINE = 64 };

typedef struct Key {
    const PyObject *place;
    PyObject *op, *dtype, *redop; /* the entry keeps them alive: an address stands for one object */
    long long dims[MOST_DIMS];
    uint32_t dim_count, size_count; /* the sizes themselves are those in the ring */
} Key;

typedef struct Entry {
    Key key;
    uint64_t signature;
    unsigned char fixed[NS_FIXED];
} Entry;

struct ns_seen {
    Entry entries[SLOTS];
};
_Static_assert(sizeof(Entry) % LINE == 0, "a cache line belongs to one entry");

static bool make_key(const ns_planned *call, const PyObject *place, Key *to)
{
    Py_ssize_t count = PyTuple_Check(call->shape) ? PyTuple_Size(call->shape) : MOST_DIMS + 1;
    if (count > MOST_DIMS)
        return false;
    memset(to->dims, 0, sizeof to->dims);
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *dim = PyTuple_GetItem(call->shape, at);
        int overflow;
        if (Py_TYPE(dim) != &PyLong_Type) /* the size of a symbolic shape would ask Python */
            return false;
        to->dims[at] = PyLong_AsLongLongAndOverflow(dim, &overflow);
        if (overflow)
            return false;
    }
    to->dim_count = (uint32_t)count;
    to->size_count = (uint32_t)call->size_count;
    to->place = place;
    to->op = call->op;
    to->dtype = call->dtype;
    to->redop = call->redop;
    return true;
}

static size_t slot_of(const Key *key, const ns_planned *call)
{
    uint64_t hash = (uint64_t)(uintptr_t)key->place ^ (uint64_t)(uintptr_t)key->op >> 3;
    for (uint32_t at = 0; at < key->dim_count; at++)
        hash = (hash ^ (uint64_t)key->dims[at]) * 0x9E3779B97F4A7C15;
    for (uint32_t at = 0; at < key->size_count; at++)
        hash = (hash ^ (uint64_t)call->sizes[at]) * 0x9E3779B97F4A7C15;
    return (size_t)((hash * 0xBF58476D1CE4E5B9) >> 32) % SLOTS;
}

static bool equal(const Key *a, const Key *b)
{
    return a->place == b->place && a->op == b->op && a->dtype == b->dtype && a->redop == b->redop
           && a->dim_count == b->dim_count && a->size_count == b->size_count
           && !memcmp(a->dims, b->dims, sizeof a->dims);
}

ns_seen *ns_seen_new(void)
{
    /* An entry is two cache lines, and not parts of three. */
    ns_seen *made = aligned_alloc(LINE, sizeof *made);
    return made ? memset(made, 0, sizeof *made) : NULL;
}

static void drop(Key *key)
{
    Py_XDECREF(key->op);
    Py_XDECREF(key->dtype);
    Py_XDECREF(key->redop);
}

void ns_seen_free(ns_seen *seen)
{
    for (size_t at = 0; seen && at < SLOTS; at++)
        drop(&seen->entries[at].key);
    free(seen);
}

ns_packed ns_seen_find(const ns_seen *seen, const ns_ring *ring, const ns_planned *call,
                       const PyObject *place)
{
    Key key;
    if (seen && make_key(call, place, &key)) {
        const Entry *entry = &seen->entries[slot_of(&key, call)];
        if (equal(&entry->key, &key)
            && (!key.size_count
                || ns_same_sizes(ring, ns_place_of_sizes(entry->fixed), call->sizes, key.size_count)))
            return (ns_packed){entry->fixed, entry->signature};
    }
    return (ns_packed){NULL, 0};
}

void ns_seen_add(ns_seen *seen, const ns_planned *call, const PyObject *place, ns_packed packed)
{
    Key key;
    if (!seen || !make_key(call, place, &key))
        return;
    Entry *entry = &seen->entries[slot_of(&key, call)];
    Key before = entry->key;
    Py_INCREF(key.op);
    Py_INCREF(key.dtype);
    Py_XINCREF(key.redop);
    entry->key = key;
    entry->signature = packed.signature;
    memcpy(entry->fixed, packed.fixed, NS_FIXED);
    drop(&before); /* last: it may run code of the program, which may make calls */
}
