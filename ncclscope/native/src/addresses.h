/* A dict by the id of objects: what probes know of groups and works. Asking a dict of Python for an
 * address makes an int, and takes longer than the record. */
#ifndef NCCLSCOPE_ADDRESSES_H
#define NCCLSCOPE_ADDRESSES_H

#include <Python.h>

#include <stdbool.h>

bool ns_is_addresses(PyObject *object);
PyObject *ns_addresses_new(PyObject *module, PyObject *none);

Py_ssize_t ns_addresses_count(const PyObject *self);
PyObject *ns_addresses_find(const PyObject *self, const void *key); /* borrowed; NULL without error */
bool ns_addresses_put(PyObject *self, const void *key, PyObject *value); /* false with an error set */
void ns_addresses_remove(PyObject *self, const void *key);

bool ns_addresses_ready(void); /* false with an error set */

#endif
