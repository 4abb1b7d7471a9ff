/* From an item to an instance of metrics.Metrics. */
#ifndef NNDIFF_RESULTS_H
#define NNDIFF_RESULTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "work.h"

/* Where an instance of the class holds its fields, in their order. */
typedef struct {
    PyTypeObject *class;
    Py_ssize_t offset[9 + ROW_NUMBERS];
} Fields;

/* Find the fields of a class with slots; 0, with an exception set, where it is another class. */
int fields_of(PyTypeObject *class, Fields *);

/* An instance of the class, None where squares left the range of float64, (errno, side) where reading failed. */
PyObject *result_of(const Item *, const Fields *, PyObject *shape);

#endif
