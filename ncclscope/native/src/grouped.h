/* The thread that posts, and the NCCL group that is open on it: see scope.py. */
#ifndef NCCLSCOPE_GROUPED_H
#define NCCLSCOPE_GROUPED_H

#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

PyObject *ns_use_threads(PyObject *module, PyObject *args);
PyObject *ns_thread_number(PyObject *module, PyObject *none);
unsigned ns_ask_thread(void);

enum { NS_ASKED = 1 };
/* The number of this thread, as flags of a record, and NS_ASKED. Each call reads it: the model saves
 * a call into the loader. */
extern __thread unsigned ns_own_thread __attribute__((tls_model("initial-exec")));

/* Return the number of this thread, as flags of a record; 0: not known. */
static inline unsigned ns_thread_flags(void)
{
    unsigned own = ns_own_thread;
    return (own ? own : ns_ask_thread()) & ~(unsigned)NS_ASKED;
}

/* Whether a dict by identity has this thread; true, with an error set, where that is not known. */
bool ns_is_thread_in(PyObject *threads);

/* All return false with an error set. */
bool ns_group_open(PyObject *groups, uint64_t *number); /* 0 without a group */
bool ns_group_enter(PyObject *groups, PyObject *numbers);
bool ns_group_leave(PyObject *groups);

#endif
