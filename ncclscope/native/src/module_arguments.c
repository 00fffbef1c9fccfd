#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include "arguments.h"

/* Exported by every CPython from 3.11 on, and of the Limited API from 3.12 on. */
extern PyObject *PyObject_Vectorcall(PyObject *, PyObject *const *, size_t, PyObject *)
    __attribute__((weak));
/* Exported from 3.8 on. */
extern PyObject *PyVectorcall_Call(PyObject *, PyObject *, PyObject *);

PyObject *ns_argument(const ns_arguments *given, const ns_parameter *parameter)
{
    Py_ssize_t count = ns_positional_count(given);
    if (count > parameter->at)
        return given->args[parameter->at];
    Py_ssize_t named = given->names && parameter->name ? PyTuple_Size(given->names) : 0;
    for (Py_ssize_t at = 0; at < named; at++) {
        PyObject *name = PyTuple_GetItem(given->names, at);
        /* Names in the program's code are interned, those of a dict need not be. */
        if (name == parameter->name || PyUnicode_Compare(name, parameter->name) == 0)
            return given->args[count + at];
    }
    return NULL;
}

PyObject *ns_positional(const ns_arguments *given)
{
    Py_ssize_t count = ns_positional_count(given);
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t at = 0; made && at < count; at++) {
        Py_INCREF(given->args[at]);
        PyTuple_SetItem(made, at, given->args[at]);
    }
    return made;
}

PyObject *ns_by_name(const ns_arguments *given)
{
    Py_ssize_t count = ns_positional_count(given);
    Py_ssize_t named = given->names ? PyTuple_Size(given->names) : 0;
    PyObject *made = PyDict_New();
    for (Py_ssize_t at = 0; made && at < named; at++)
        if (PyDict_SetItem(made, PyTuple_GetItem(given->names, at), given->args[count + at]) < 0)
            Py_CLEAR(made);
    return made;
}

PyObject *ns_call_as_given(PyObject *function, const ns_arguments *given)
{
    if (PyObject_Vectorcall)
        return PyObject_Vectorcall(function, given->args, given->flagged, given->names);
    PyObject *positional = ns_positional(given);
    PyObject *by_name = positional ? ns_by_name(given) : NULL;
    PyObject *result = by_name ? PyObject_Call(function, positional, by_name) : NULL;
    Py_XDECREF(positional);
    Py_XDECREF(by_name);
    return result;
}

PyObject *ns_call_by_vector(PyObject *object, PyObject *args, PyObject *keywords)
{
    return PyVectorcall_Call(object, args, keywords);
}
