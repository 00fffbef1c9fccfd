#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include "place.h"

#include "frames.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Not of the Limited API, but exported by every CPython from 3.9 and 3.11 on. */
extern PyFrameObject *PyFrame_GetBack(PyFrameObject *) __attribute__((weak));
extern int PyFrame_GetLasti(PyFrameObject *) __attribute__((weak));

enum { USER = 0, UNKNOWN = -1 };
enum { CODES = 4096, PLACES = 4096, PROBES = 8, DEPTH = 32, PATIENCE = 4, FOUND = -1 };

/* Code objects that callsite.py keeps alive, so that an address identifies one of them. */
typedef struct Known {
    PyObject *code;
    int role;
    int misses; /* searches without a user's frame above; FOUND once there was one */
} Known;

/* Call sites that have their tuple. */
typedef struct Place {
    PyObject *code, *user;
    int at, user_at;
    PyObject *tuple;
} Place;

static Known codes[CODES] __attribute__((aligned(64)));
static Place places[PLACES] __attribute__((aligned(64)));
static PyObject *classify;
static PyObject *elsewhere; /* borrowed of `places`, which keep their tuples */
static int plumbing, reads_frames;

static size_t slot_of(const void *pointer, size_t more, size_t slots)
{
    uint64_t hash = ((uint64_t)(uintptr_t)pointer >> 4) + more * 0x9E3779B97F4A7C15;
    hash *= 0xBF58476D1CE4E5B9;
    return (size_t)(hash >> 32) % slots;
}

/* Return the entry that a code object has; NULL without. */
static const Known *known_yet(const PyObject *code)
{
    size_t start = slot_of(code, 0, CODES);
    for (size_t at = 0; at < PROBES; at++)
        if (codes[(start + at) % CODES].code == code)
            return &codes[(start + at) % CODES];
    return NULL;
}

/* Return a code object's entry, if needed a new one; NULL if there is none to be had. */
static Known *known(PyObject *code)
{
    size_t start = slot_of(code, 0, CODES);
    for (size_t at = 0; at < PROBES; at++) {
        Known *entry = &codes[(start + at) % CODES];
        if (entry->code == code)
            return entry;
        if (entry->code)
            continue;
        PyObject *answer = PyObject_CallFunctionObjArgs(classify, code, NULL);
        int role, is_kept;
        if (!answer || !PyArg_ParseTuple(answer, "ip", &role, &is_kept)) {
            Py_XDECREF(answer);
            PyErr_Clear();
            return NULL;
        }
        Py_DECREF(answer);
        if (!is_kept)
            return NULL;
        if (entry->code) /* asking Python has let in another thread */
            return known(code);
        *entry = (Known){code, role, 0};
        return entry;
    }
    return NULL;
}

/* Return the entry of a call site, or an empty one for it; NULL if there is none to be had. */
static Place *entry_of(PyObject *code, int at, PyObject *user, int user_at)
{
    size_t start = slot_of(code, (size_t)at * 31 + (size_t)user_at + (size_t)(uintptr_t)user, PLACES);
    for (size_t probe = 0; probe < PROBES; probe++) {
        Place *entry = &places[(start + probe) % PLACES];
        if (!entry->code
            || (entry->code == code && entry->at == at && entry->user == user
                && entry->user_at == user_at))
            return entry;
    }
    return NULL;
}

static PyObject *tuple_of(PyObject *code, int at, PyObject *user, int user_at)
{
    Place *entry = entry_of(code, at, user, user_at);
    if (!entry || entry->code)
        return entry ? entry->tuple : NULL;
    PyObject *number = PyLong_FromVoidPtr(code), *instruction;
    if (user) {
        PyObject *outer = PyLong_FromVoidPtr(user);
        instruction = outer ? Py_BuildValue("(iNi)", at, outer, user_at) : NULL;
    } else {
        instruction = PyLong_FromLong(at);
    }
    PyObject *made = number && instruction ? PyTuple_Pack(2, number, instruction) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(instruction);
    if (made && !entry->code)
        *entry = (Place){code, user, at, user_at, made};
    else
        Py_CLEAR(made);
    PyErr_Clear();
    return made;
}

/* Return the user's frame above an installed one, with its code's entry; a new reference. */
static PyFrameObject *user_above(PyFrameObject *frame, Known **entry)
{
    PyFrameObject *outer = PyFrame_GetBack(frame);
    for (int depth = 0; outer && depth < DEPTH; depth++) {
        PyCodeObject *code = PyFrame_GetCode(outer);
        *entry = known((PyObject *)code);
        Py_DECREF(code);
        if (!*entry)
            break;
        if ((*entry)->role == USER)
            return outer;
        PyFrameObject *next = PyFrame_GetBack(outer);
        Py_DECREF(outer);
        outer = next;
    }
    Py_XDECREF(outer);
    return NULL;
}

static PyObject *installed(PyFrameObject *frame, Known *entry)
{
    Known *user = NULL;
    int at = PyFrame_GetLasti(frame);
    if (entry->misses >= PATIENCE)
        return tuple_of(entry->code, at, NULL, 0);
    PyFrameObject *outer = user_above(frame, &user);
    if (outer) {
        int user_at = PyFrame_GetLasti(outer);
        Py_DECREF(outer);
        entry->misses = FOUND;
        return tuple_of(entry->code, at, user->code, user_at);
    }
    if (entry->misses != FOUND)
        entry->misses++;
    return tuple_of(entry->code, at, NULL, 0);
}

/* Return the call site if all that it takes is known, from the frames themselves. A frame that has not
 * begun yet is none to the interpreter's functions. None of these finds a place at its instruction,
 * so that such a one is not found here either. */
static PyObject *known_here(void)
{
    const char *frame = ns_frame_innermost();
    const Known *entry = NULL, *user = NULL;
    while (frame && (entry = known_yet(ns_frame_code(frame))) && entry->role == plumbing)
        frame = ns_frame_back(frame);
    if (!frame || !entry)
        return NULL;
    int at = ns_frame_lasti(frame), depth = 0;
    const char *outer = frame;
    if (entry->role != USER && entry->misses < PATIENCE) {
        while (depth++ < DEPTH && (outer = ns_frame_back(outer))) {
            user = known_yet(ns_frame_code(outer));
            if (!user)
                return NULL;
            if (user->role == USER)
                break;
            user = NULL;
        }
        if (!user && entry->misses != FOUND)
            return NULL; /* to be counted */
    }
    const Place *place = entry_of(entry->code, at, user ? user->code : NULL,
                                  user ? ns_frame_lasti(outer) : 0);
    return place ? place->tuple : NULL;
}

/* Return the call site from objects of the frames. */
static PyObject *search(void)
{
    if (!classify || !PyFrame_GetBack || !PyFrame_GetLasti)
        return NULL;
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *found = elsewhere;
    Py_XINCREF(frame);
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        Known *entry = known((PyObject *)code);
        Py_DECREF(code);
        if (!entry || entry->role != plumbing) {
            found = !entry                ? NULL
                    : entry->role == USER ? tuple_of(entry->code, PyFrame_GetLasti(frame), NULL, 0)
                                          : installed(frame, entry);
            break;
        }
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    Py_XDECREF(frame);
    return found;
}

PyObject *ns_place_here(void)
{
    PyObject *place = reads_frames ? known_here() : NULL;
    return place ? place : search();
}

PyObject *ns_elsewhere(PyObject *Py_UNUSED(module), PyObject *begins)
{
    elsewhere = NULL;
    if (begins == Py_True)
        elsewhere = ns_place_here();
    Py_RETURN_NONE;
}

PyObject *ns_place_by(PyObject *Py_UNUSED(module), PyObject *frames)
{
    PyObject *place = frames == Py_True ? known_here() : search();
    place = place ? place : Py_None;
    Py_INCREF(place);
    return place;
}

PyObject *ns_places(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function;
    int role, reads;
    if (!PyArg_ParseTuple(args, "Oip", &function, &role, &reads))
        return NULL;
    Py_INCREF(function);
    Py_XDECREF(classify);
    classify = function;
    plumbing = role;
    reads_frames = reads;
    Py_RETURN_NONE;
}
