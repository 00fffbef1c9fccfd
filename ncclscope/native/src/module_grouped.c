/* The thread that posts, and the NCCL group that is open on it. The state of a group is scope.groups:
 * [depth, number] by thread identity. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pythread.h>

#include "grouped.h"

/* Return the state of this thread, borrowed; NULL without a group, or with an error set. */
static PyObject *state_here(PyObject *groups, PyObject *thread)
{
    PyObject *state = PyDict_GetItemWithError(groups, thread);
    if (state && !(PyList_Check(state) && PyList_Size(state) == 2)) {
        PyErr_SetString(PyExc_TypeError, "not the state of a group");
        return NULL;
    }
    return state;
}

/* Change the depth by 1 or -1, and return it; -1 with an error set. */
static long deepen(PyObject *state, int by)
{
    long depth = PyLong_AsLong(PyList_GetItem(state, 0));
    PyObject *number = PyErr_Occurred() ? NULL : PyLong_FromLong(depth + by);
    return number && PyList_SetItem(state, 0, number) == 0 ? depth + by : -1;
}

/* --- threads ------------------------------------------------------------------------------------ */

enum { THREAD_SHIFT = 2, MOST_THREADS = 62, SEVERAL = 63 };

static PyObject *living, *foreign; /* threading's threads by identity, and the class of others */
__thread unsigned ns_own_thread;
static struct {
    unsigned long identity;
    const PyObject *thread; /* compared, never used */
} holders[MOST_THREADS];

PyObject *ns_use_threads(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *threads, *class;
    if (!PyArg_ParseTuple(args, "O!O!", &PyDict_Type, &threads, &PyType_Type, &class))
        return NULL;
    Py_INCREF(threads);
    Py_INCREF(class);
    Py_XDECREF(living);
    Py_XDECREF(foreign);
    living = threads;
    foreign = class;
    Py_RETURN_NONE;
}

/* Return the thread of an identity that Python knows, borrowed; NULL without one. */
static PyObject *living_thread(unsigned long identity)
{
    PyObject *key = PyLong_FromUnsignedLong(identity);
    PyObject *thread = key ? PyDict_GetItemWithError(living, key) : NULL;
    Py_XDECREF(key);
    return thread;
}

/* No code in Python runs here: a handler of a signal would raise inside of a posted call. */
static unsigned take_number(void)
{
    unsigned long identity = PyThread_get_thread_ident();
    PyObject *own = living_thread(identity);
    if (!own || PyObject_IsInstance(own, foreign))
        return 0;
    /* This thread has no number yet: another one at its address has ended. So no thread that lives
     * looks like the holder of two numbers, and they do not run out before there are as many. */
    for (unsigned at = 0; at < MOST_THREADS; at++)
        if (holders[at].thread == own)
            holders[at].thread = NULL;
    for (unsigned at = 0; at < MOST_THREADS; at++) {
        const PyObject *holder = holders[at].thread;
        if (holder && living_thread(holders[at].identity) == holder)
            continue;
        holders[at].identity = identity;
        holders[at].thread = own;
        return at + 1;
    }
    return SEVERAL;
}

unsigned ns_ask_thread(void)
{
    if (living) {
        ns_own_thread = NS_ASKED | take_number() << THREAD_SHIFT;
        PyErr_Clear();
    }
    return ns_own_thread;
}

PyObject *ns_thread_number(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLong(ns_thread_flags() >> THREAD_SHIFT);
}

/* --- groups ------------------------------------------------------------------------------------- */

bool ns_is_thread_in(PyObject *threads)
{
    if (!PyDict_Size(threads))
        return false;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    bool is_in = !thread || PyDict_GetItemWithError(threads, thread) || PyErr_Occurred();
    Py_XDECREF(thread);
    return is_in;
}

bool ns_group_open(PyObject *groups, uint64_t *number)
{
    *number = 0;
    if (!PyDict_Size(groups))
        return true;
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *state = thread ? state_here(groups, thread) : NULL;
    if (state)
        *number = PyLong_AsUnsignedLongLong(PyList_GetItem(state, 1));
    Py_XDECREF(thread);
    return !PyErr_Occurred();
}

bool ns_group_enter(PyObject *groups, PyObject *numbers)
{
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *state = thread ? state_here(groups, thread) : NULL;
    bool entered = false;
    if (state) {
        entered = deepen(state, 1) > 0;
    } else if (thread && !PyErr_Occurred()) {
        PyObject *number = PyIter_Next(numbers);
        PyObject *made = number ? Py_BuildValue("[iN]", 1, number) : NULL;
        entered = made && PyDict_SetItem(groups, thread, made) == 0;
        Py_XDECREF(made);
    }
    Py_XDECREF(thread);
    return entered;
}

bool ns_group_leave(PyObject *groups)
{
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *state = thread ? state_here(groups, thread) : NULL;
    if (state && deepen(state, -1) == 0)
        PyDict_DelItem(groups, thread);
    Py_XDECREF(thread);
    return !PyErr_Occurred();
}
