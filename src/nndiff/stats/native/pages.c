/* A window as a Python object. */
#include "pages.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "window.h"

typedef struct {
    PyObject_HEAD
    Window window;
    int fd;
} PagesObject;

/* Reading behind the end of a file ends a thread that cannot be told of it. */
static int can_be_told(void)
{
    sigset_t masked;
    return pthread_sigmask(SIG_SETMASK, NULL, &masked) == 0 && !sigismember(&masked, SIGBUS);
}

static PyObject *pages_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    int fd;
    long long start, stop;
    if (!PyArg_ParseTuple(args, "iLL", &fd, &start, &stop))
        return NULL;
    PagesObject *self = (PagesObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the file's own may be closed before this is done with */
    if (self->fd >= 0 && start >= 0 && can_be_told())
        window_map(&self->window, self->fd, start, stop);
    if (!self->window.bytes) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_OSError, "these bytes cannot be mapped");
    }
    return (PyObject *)self;
}

static void pages_dealloc(PagesObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    int why;
    window_close(&self->window, &why);
    if (self->fd >= 0)
        close(self->fd);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int pages_get_buffer(PagesObject *self, Py_buffer *view, int flags)
{
    const Window *w = &self->window;
    return PyBuffer_FillInfo(view, (PyObject *)self, w->bytes, (Py_ssize_t)(w->to - w->from), 1, flags);
}

PyDoc_STRVAR(trouble_doc, "trouble() -> int: 0, or -1 where the file became shorter, or the errno of a failed read.");

static PyObject *pages_trouble(PagesObject *self, PyObject *Py_UNUSED(args))
{
    int why = 0;
    return PyLong_FromLong(window_trouble(&self->window, &why) < 0 ? 0 : why);
}

static PyMethodDef pages_methods[] = {
    {"trouble", (PyCFunction)pages_trouble, METH_NOARGS, trouble_doc},
    {0},
};

static PyType_Slot pages_slots[] = {
    {Py_tp_new, (void *)pages_new},
    {Py_tp_dealloc, (void *)pages_dealloc},
    {Py_tp_methods, pages_methods},
    {Py_bf_getbuffer, (void *)pages_get_buffer},
    {Py_tp_doc, "Pages(fd, start, stop): bytes of a file, mapped; zeros stand in for what cannot be read."},
    {0, NULL},
};

PyType_Spec pages_spec = {"nndiff.stats._native.Pages", sizeof(PagesObject), 0, Py_TPFLAGS_DEFAULT, pages_slots};
