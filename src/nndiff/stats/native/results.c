/* Results as Python objects, field by field: with thousands of pairs, a constructor would take longer than C. */
#include "results.h"

#include <structmember.h>

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

int fields_of(PyTypeObject *class, Fields *fields)
{
    PyObject *names = PyObject_GetAttrString((PyObject *)class, "__slots__");
    int good = names && PyTuple_Check(names) && PyTuple_GET_SIZE(names) == 9 + ROW_NUMBERS;
    fields->class = class;
    for (Py_ssize_t i = 0; good && i < 9 + ROW_NUMBERS; i++) {
        PyObject *slot = PyObject_GetAttr((PyObject *)class, PyTuple_GET_ITEM(names, i));
        good = slot && Py_TYPE(slot) == &PyMemberDescr_Type;
        fields->offset[i] = good ? ((PyMemberDescrObject *)slot)->d_member->offset : 0;
        Py_XDECREF(slot);
    }
    Py_XDECREF(names);
    if (!good && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "not the class of results");
    return good;
}

/* Set the next field of a new result, which is empty yet; takes over the reference. */
static int put(PyObject *made, const Fields *fields, size_t *next, PyObject *value)
{
    *(PyObject **)((char *)made + fields->offset[(*next)++]) = value;
    return value != NULL;
}

/* Numbers and tuples of numbers: nothing for the collector to find. */
static PyObject *untracked(PyObject *made)
{
    if (made && PyObject_IS_GC(made) && PyObject_GC_IsTracked(made))
        PyObject_GC_UnTrack(made);
    return made;
}

static int fill(PyObject *made, const Fields *fields, const Row *row, PyObject *shape)
{
    const int64_t counts[] = {row->count, row->unequal, row->mismatched, row->bad_ref, row->bad_cand, row->bad_pairs};
    size_t next = 0;
    int good = 1;
    for (size_t i = 0; good && i < sizeof counts / sizeof *counts; i++)
        good = put(made, fields, &next, PyLong_FromLongLong(counts[i]));
    good = good && put(made, fields, &next, PyFloat_FromDouble(row->max_abs));
    good = good && put(made, fields, &next, untracked(unravel(row->at, shape)));
    for (size_t i = 0; good && i < ROW_NUMBERS; i++)
        good = put(made, fields, &next, PyFloat_FromDouble(row->number[i]));
    return good && put(made, fields, &next, untracked(float_tuple(row->envelope, RTOLS)));
}

PyObject *result_of(const Item *item, const Fields *fields, PyObject *shape)
{
    Row row;
    if (item->error)
        return Py_BuildValue("ii", item->error, item->error_side);
    state_finish(&item->state, &row);
    if (row.extreme)
        Py_RETURN_NONE;
    PyObject *made = fields->class->tp_alloc(fields->class, 0);
    if (made && !fill(made, fields, &row, shape))
        Py_CLEAR(made);
    return untracked(made);
}
