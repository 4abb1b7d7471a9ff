/* Results as Python objects, field by field: with thousands of pairs, a constructor would take longer than C. */
#include "results.h"

/* The place of element `flat` in C order, or None. */
static PyObject *unravel(int64_t flat, PyObject *shape)
{
    Py_ssize_t axes = PyTuple_GET_SIZE(shape);
    if (flat < 0)
        Py_RETURN_NONE;
    PyObject *index = PyTuple_New(axes);
    for (Py_ssize_t axis = axes - 1; index && axis >= 0; axis--) {
        long long size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, axis));
        PyObject *place = size > 0 ? PyLong_FromLongLong(flat % size) : NULL;
        if (!place) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "the shape holds no such element");
            Py_CLEAR(index);
            break;
        }
        flat /= size;
        PyTuple_SET_ITEM(index, axis, place);
    }
    return index;
}

static PyObject *float_tuple(const double *values, Py_ssize_t count)
{
    PyObject *out = PyTuple_New(count);
    for (Py_ssize_t i = 0; out && i < count; i++) {
        PyObject *value = PyFloat_FromDouble(values[i]);
        if (!value)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, value);
    }
    return out;
}

/* Set the next field of a result; takes over the reference. A frozen class refuses `setattr`, not this. */
static int put(PyObject *made, PyObject *names, Py_ssize_t *next, PyObject *value)
{
    if (!value)
        return 0;
    int failed = PyObject_GenericSetAttr(made, PyTuple_GET_ITEM(names, (*next)++), value);
    Py_DECREF(value);
    return !failed;
}

static int fill(PyObject *made, PyObject *names, const Row *row, PyObject *shape)
{
    const int64_t counts[] = {row->count, row->unequal, row->mismatched, row->bad_ref, row->bad_cand, row->bad_pairs};
    Py_ssize_t next = 0;
    int good = 1;
    for (size_t i = 0; good && i < sizeof counts / sizeof *counts; i++)
        good = put(made, names, &next, PyLong_FromLongLong(counts[i]));
    good = good && put(made, names, &next, PyFloat_FromDouble(row->max_abs));
    good = good && put(made, names, &next, unravel(row->at, shape));
    for (size_t i = 0; good && i < ROW_NUMBERS; i++)
        good = put(made, names, &next, PyFloat_FromDouble(row->number[i]));
    return good && put(made, names, &next, float_tuple(row->envelope, RTOLS));
}

PyObject *result_of(const Item *item, PyTypeObject *class, PyObject *names, PyObject *shape)
{
    Row row;
    if (item->error)
        return Py_BuildValue("ii", item->error, item->error_side);
    state_finish(&item->state, &row);
    if (row.overflow)
        Py_RETURN_NONE;
    PyObject *made = class->tp_alloc(class, 0);
    if (made && !fill(made, names, &row, shape))
        Py_CLEAR(made);
    if (made && PyObject_GC_IsTracked(made))
        PyObject_GC_UnTrack(made); /* numbers and tuples of numbers: nothing for the collector to find */
    return made;
}
