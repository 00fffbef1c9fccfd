/* The arguments of a call as the interpreter passes them: no tuple and no dict is made for them. */
#ifndef NCCLSCOPE_ARGUMENTS_H
#define NCCLSCOPE_ARGUMENTS_H

#include <Python.h>

#include <stddef.h>

/* As of PEP 590; the Limited API has it only from Python 3.12 on. */
typedef PyObject *(*ns_vector_call)(PyObject *, PyObject *const *, size_t, PyObject *);
enum { NS_HAVE_VECTORCALL = 1 << 11 }; /* flag of a type */

typedef struct ns_arguments {
    PyObject *const *args; /* the positional ones, and behind them those by name */
    size_t flagged;        /* number of the positional ones, with the interpreter's flag */
    PyObject *names;       /* tuple of names; NULL or empty without */
} ns_arguments;

static inline Py_ssize_t ns_positional_count(const ns_arguments *given)
{
    return (Py_ssize_t)(given->flagged & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
}

/* A parameter of a function. */
typedef struct ns_parameter {
    Py_ssize_t at;  /* position; 0 if there is none, since that is the object with the method */
    PyObject *name; /* interned; NULL if it is not known */
} ns_parameter;

/* Return an argument, borrowed; NULL if it was not given. No error is set. */
PyObject *ns_argument(const ns_arguments *given, const ns_parameter *parameter);

PyObject *ns_positional(const ns_arguments *given); /* a new tuple */
PyObject *ns_by_name(const ns_arguments *given);    /* a new dict */
PyObject *ns_call_as_given(PyObject *function, const ns_arguments *given);
/* Calls the object's own function of that type. Returns what a type's tp_call returns. */
PyObject *ns_call_by_vector(PyObject *object, PyObject *args, PyObject *keywords);

#endif
