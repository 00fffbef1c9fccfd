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

enum { THREAD_SHIFT = 2, MOST_THREADS = 63, ASKED = 1 };

static PyObject *number_of_thread; /* see ncclscope/native/threads.py */
static __thread unsigned own_flags;

PyObject *ns_use_threads(PyObject *Py_UNUSED(module), PyObject *function)
{
    PyObject *before = number_of_thread;
    Py_INCREF(function);
    number_of_thread = function;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

unsigned ns_thread_flags(void)
{
    if (!own_flags && number_of_thread) {
        PyObject *answer = PyObject_CallNoArgs(number_of_thread);
        unsigned long number = answer ? PyLong_AsUnsignedLong(answer) : 0;
        Py_XDECREF(answer);
        PyErr_Clear();
        own_flags = ASKED | (number <= MOST_THREADS ? (unsigned)number << THREAD_SHIFT : 0);
    }
    return own_flags & ~(unsigned)ASKED;
}

/* --- groups ------------------------------------------------------------------------------------- */

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
