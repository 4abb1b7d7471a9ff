/* The quick way through native_engine.py's own `_side`: attributes are read here, anything unusual is left to Python. */
#include "gather.h"

#include <float.h>

/* The classes and element types of nndiff, and the names of their attributes. */
static struct {
    PyObject *in_memory, *in_file, *codes;
    PyObject *reference, *candidate, *atol, *rtol, *shape, *dtype, *data, *name, *storage, *array, *window, *swapped, *file,
        *start, *size, *fd;
} known;

const char know_doc[] = "know(in_memory, in_file, codes): set the classes that gather() takes and the number of each type.";

static int know_names(void)
{
    const struct {
        PyObject **name;
        const char *text;
    } all[] = {
        {&known.reference, "reference"}, {&known.candidate, "candidate"}, {&known.atol, "atol"}, {&known.rtol, "rtol"},
        {&known.shape, "shape"}, {&known.dtype, "dtype"}, {&known.data, "data"}, {&known.name, "name"},
        {&known.storage, "storage"}, {&known.array, "array"}, {&known.window, "window"}, {&known.swapped, "swapped"},
        {&known.file, "file"}, {&known.start, "start"}, {&known.size, "size"}, {&known.fd, "fd"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!*all[i].name && !(*all[i].name = PyUnicode_InternFromString(all[i].text)))
            return 0;
    return 1;
}

PyObject *know(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *in_memory, *in_file, *codes;
    if (!PyArg_ParseTuple(args, "OOO!", &in_memory, &in_file, &PyDict_Type, &codes) || !know_names())
        return NULL;
    Py_XSETREF(known.in_memory, Py_NewRef(in_memory));
    Py_XSETREF(known.in_file, Py_NewRef(in_file));
    Py_XSETREF(known.codes, Py_NewRef(codes));
    Py_RETURN_NONE;
}

/* An attribute as a number; -1 where it is none, as no attribute that is read here is negative. */
static int64_t number(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    int64_t out = value && PyLong_Check(value) ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    return out;
}

static double real(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    double out = value && PyFloat_Check(value) ? PyFloat_AS_DOUBLE(value) : -1;
    Py_XDECREF(value);
    return out;
}

static int64_t count_of(PyObject *shape)
{
    int64_t count = 1;
    if (!shape || !PyTuple_Check(shape))
        return -1;
    for (Py_ssize_t axis = 0; axis < PyTuple_GET_SIZE(shape); axis++) {
        int64_t size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, axis));
        if (size < 0 || __builtin_mul_overflow(count, size, &count))
            return -1;
    }
    return count;
}

typedef struct {
    int32_t type, fd;
    int64_t place;
} Place;

/* Find elements in memory; the array is kept while C reads. */
static int place_in_memory(PyObject *data, PyObject *storage, int64_t bytes, Place *out, PyObject *holds)
{
    Py_buffer view;
    PyObject *array = PyObject_GetAttr(data, known.array), *have = array ? PyObject_GetAttr(array, known.dtype) : NULL;
    int good = have == storage && PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) == 0;
    if (good) {
        out->fd = -1;
        out->place = (int64_t)(intptr_t)view.buf;
        good = view.len == bytes && PyList_Append(holds, array) == 0;
        PyBuffer_Release(&view);
    }
    Py_XDECREF(have);
    Py_XDECREF(array);
    return good;
}

/* Find elements in a file that is open already. */
static int place_in_file(PyObject *data, PyObject *storage, int64_t bytes, Place *out, PyObject *files)
{
    PyObject *window = PyObject_GetAttr(data, known.window), *swapped = PyObject_GetAttr(data, known.swapped);
    PyObject *have = PyObject_GetAttr(data, known.storage), *file = window ? PyObject_GetAttr(window, known.file) : NULL;
    PyObject *opened = file ? PyDict_GetItemWithError(files, file) : NULL;
    int good = opened && swapped == Py_False && have == storage && number(window, known.size) >= bytes;
    if (good) {
        out->fd = (int32_t)number(opened, known.fd);
        out->place = number(window, known.start);
        good = out->fd >= 0 && out->place >= 0;
    }
    Py_XDECREF(file);
    Py_XDECREF(have);
    Py_XDECREF(swapped);
    Py_XDECREF(window);
    return good;
}

/* Find the elements of a side; 0 where Python has to look. */
static int place_of(PyObject *ref, int64_t count, Place *out, PyObject *holds, PyObject *files)
{
    PyObject *dtype = PyObject_GetAttr(ref, known.dtype), *data = PyObject_GetAttr(ref, known.data);
    PyObject *name = dtype ? PyObject_GetAttr(dtype, known.name) : NULL;
    PyObject *storage = dtype ? PyObject_GetAttr(dtype, known.storage) : NULL;
    PyObject *code = name ? PyDict_GetItemWithError(known.codes, name) : NULL;
    int good = 0;
    if (code && data && storage) {
        int64_t type = PyLong_AsLongLong(code), bytes;
        if (type >= 0 && type < TYPES && !__builtin_mul_overflow(count, (int64_t)TYPE_SIZE[type], &bytes)) {
            out->type = (int32_t)type;
            if ((PyObject *)Py_TYPE(data) == known.in_memory)
                good = place_in_memory(data, storage, bytes, out, holds);
            else if ((PyObject *)Py_TYPE(data) == known.in_file)
                good = place_in_file(data, storage, bytes, out, files);
        }
    }
    Py_XDECREF(storage);
    Py_XDECREF(name);
    Py_XDECREF(data);
    Py_XDECREF(dtype);
    return good;
}

static int pack(PyObject *job, Packed *out, PyObject *holds, PyObject *files)
{
    Place place[2];
    PyObject *ref = PyObject_GetAttr(job, known.reference), *cand = PyObject_GetAttr(job, known.candidate);
    PyObject *shape = ref ? PyObject_GetAttr(ref, known.shape) : NULL;
    double atol = real(job, known.atol), rtol = real(job, known.rtol);
    int64_t count = count_of(shape);
    int good = cand && count >= 0 && atol >= 0 && atol <= DBL_MAX && rtol >= 0 && rtol <= DBL_MAX &&
               place_of(ref, count, &place[0], holds, files) && place_of(cand, count, &place[1], holds, files);
    if (good)
        *out = (Packed){place[0].type, place[1].type, place[0].fd, place[1].fd, place[0].place, place[1].place,
                        count, atol, rtol};
    Py_XDECREF(shape);
    Py_XDECREF(cand);
    Py_XDECREF(ref);
    return good;
}

/* Give the bytes written so far to the caller: room is taken for a whole batch at once. */
static int hand_over(PyObject *packed, Py_ssize_t before, const Packed *made, Py_ssize_t count)
{
    Py_ssize_t size = count * (Py_ssize_t)sizeof *made;
    if (PyByteArray_Resize(packed, before + size) < 0)
        return 0;
    memcpy(PyByteArray_AS_STRING(packed) + before, made, (size_t)size);
    return 1;
}

const char gather_doc[] = "gather(jobs, packed, taken, holds, files, pairs, elements) -> (job, elements): take jobs from an "
                          "iterator until there are so many pairs or elements; the one that is left to Python, or None.";

PyObject *gather(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *jobs, *packed, *taken, *holds, *files, *job = NULL;
    Py_ssize_t pairs, made = 0;
    long long elements;
    if (!PyArg_ParseTuple(args, "OO!O!O!O!nL", &jobs, &PyByteArray_Type, &packed, &PyList_Type, &taken, &PyList_Type, &holds,
                          &PyDict_Type, &files, &pairs, &elements))
        return NULL;
    Py_ssize_t room = pairs - PyList_GET_SIZE(taken);
    Packed *out = room > 0 ? PyMem_Malloc((size_t)room * sizeof *out) : NULL;
    if (room > 0 && !out)
        return PyErr_NoMemory();
    while (made < room && elements > 0 && (job = PyIter_Next(jobs))) {
        if (!pack(job, &out[made], holds, files)) {
            PyErr_Clear(); /* such as a number too large: Python knows what to do with it */
            break;
        }
        elements -= out[made++].count;
        int failed = PyList_Append(taken, job);
        Py_CLEAR(job);
        if (failed)
            break;
    }
    PyObject *trouble[3]; /* of the iterator: what it gave before is good */
    PyErr_Fetch(&trouble[0], &trouble[1], &trouble[2]);
    int good = hand_over(packed, PyByteArray_GET_SIZE(packed), out, made) && !trouble[0];
    if (trouble[0])
        PyErr_Restore(trouble[0], trouble[1], trouble[2]);
    PyMem_Free(out);
    PyObject *result = good ? Py_BuildValue("OL", job ? job : Py_None, elements) : NULL;
    Py_XDECREF(job);
    return result;
}
