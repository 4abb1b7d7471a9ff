/* The functions of the module that look at one tensor. */
#include "side_python.h"

#include "side.h"

const char side_measure_doc[] =
    "measure(buffer, type, threads) -> (hashes, moments): the hash of each part of 262,144 bytes, in a row; count of finite "
    "and of other elements, mean, centred squares, squares, least and largest, or None where the type is -1 or squares "
    "overflow.";

static PyObject *moments_of(const SidePart *all)
{
    const Moments *m = &all->moments;
    if (all->overflow)
        Py_RETURN_NONE;
    return Py_BuildValue("LLddddd", (long long)m->n, (long long)all->bad, m->mean.high, m->m2, all->squares, m->low, m->high);
}

static PyObject *hashes_of(const SidePart *parts, size_t count)
{
    PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * XXH3_SIZE));
    for (size_t i = 0; out && i < count; i++)
        memcpy(PyBytes_AS_STRING(out) + i * XXH3_SIZE, parts[i].hash, XXH3_SIZE);
    return out;
}

static SidePart *look(const SideJob *job, int threads)
{
    SidePart *parts;
    Py_BEGIN_ALLOW_THREADS
    parts = side_look(job, threads);
    Py_END_ALLOW_THREADS
    if (!parts)
        PyErr_NoMemory();
    return parts;
}

PyObject *side_measure(const Kernels *kernels, PyObject *args)
{
    Py_buffer view;
    int type, threads;
    PyObject *out = NULL;
    if (!PyArg_ParseTuple(args, "y*ii", &view, &type, &threads))
        return NULL;
    SideJob job = {kernels, view.buf, (size_t)view.len, type >= 0, type >= 0 ? (Type)type : TYPE_U8};
    if (type >= (int)TYPES || view.len % TYPE_SIZE[job.type]) {
        PyErr_SetString(PyExc_ValueError, "no such elements");
        PyBuffer_Release(&view);
        return NULL;
    }
    SidePart *parts = look(&job, threads);
    PyBuffer_Release(&view);
    if (!parts)
        return NULL;
    size_t count = side_parts(job.size);
    SidePart all = side_merge(parts, count);
    PyObject *hashes = hashes_of(parts, count), *moments = job.with_stats ? moments_of(&all) : Py_NewRef(Py_None);
    if (hashes && moments)
        out = PyTuple_Pack(2, hashes, moments);
    Py_XDECREF(hashes);
    Py_XDECREF(moments);
    free(parts);
    return out;
}

const char side_hashes_doc[] = "hashes(address, size, threads) -> bytes: the hashes that measure gives for these bytes.";

PyObject *side_hashes(const Kernels *kernels, PyObject *args)
{
    long long address, size;
    int threads;
    if (!PyArg_ParseTuple(args, "LLi", &address, &size, &threads))
        return NULL;
    SideJob job = {kernels, (const uint8_t *)(intptr_t)address, size > 0 ? (size_t)size : 0, 0, TYPE_U8};
    SidePart *parts = look(&job, threads);
    PyObject *out = parts ? hashes_of(parts, side_parts(job.size)) : NULL;
    free(parts);
    return out;
}

const char side_same_doc[] = "same(address, address, size) -> bool: tell whether the bytes at both places are the same.";

PyObject *side_same(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long one, other, size;
    int same = 1;
    if (!PyArg_ParseTuple(args, "LLL", &one, &other, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (size > 0)
        same = memcmp((const void *)(intptr_t)one, (const void *)(intptr_t)other, (size_t)size) == 0;
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(same);
}
