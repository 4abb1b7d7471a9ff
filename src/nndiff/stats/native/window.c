/* Mapped parts of files. A file that is cut while it is mapped sends SIGBUS to who reads behind its end: the handler puts
   zeros there and notes the place, so that the step ends as any other and the file is told to be shorter. */
#define _GNU_SOURCE
#include "window.h"

#ifdef __linux__

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SLOTS = 256,
    LEAST = 1 << 20, /* bytes: less is sooner read than mapped */
    PROBES = 16,     /* places that tell whether the page cache holds it all */
};

/* What is mapped, for the handler: it may take no lock. */
static struct {
    atomic_int taken;
    _Atomic(char *) start; /* NULL: nothing yet */
    size_t size;
    _Atomic(char *) broken; /* first address that could not be read */
} mapped[SLOTS];

static struct sigaction before; /* what is done about other addresses */

/* Put zeros from the page of an address on, to the end of what is mapped there. */
static int fill(char *at)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < SLOTS; i++) {
        char *start = atomic_load(&mapped[i].start), *least;
        if (!start || at < start || at >= start + mapped[i].size)
            continue;
        char *from = start + (size_t)(at - start) / page * page;
        do
            least = atomic_load(&mapped[i].broken);
        while ((!least || from < least) && !atomic_compare_exchange_weak(&mapped[i].broken, &least, from));
        size_t size = mapped[i].size - (size_t)(from - start);
        return mmap(from, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return 0;
}

/* Give way to who was there before: it comes again, and is theirs then. Once only: theirs may give way to us in turn. */
static void give_way(int signal, int by_machine)
{
    const struct sigaction theirs = before;
    before = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(signal, &theirs, NULL);
    if (!by_machine)
        raise(signal); /* when this one is done with */
}

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    const int kept = errno, by_machine = info->si_code > 0; /* else by a process */
    (void)context;
    if (!by_machine || !fill(info->si_addr))
        give_way(signal, by_machine);
    errno = kept;
}

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER; /* of the handler */
static int listeners;

static void in_child(void)
{
    pthread_mutex_init(&door, NULL); /* who held it is not here */
    listeners = 0;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static int is_ours(const struct sigaction *action)
{
    return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_bus_error;
}

/* Be told of errors for as long as something is mapped: whoever comes and goes in between finds nothing of us. */
static int start_listening(void)
{
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    struct sigaction now, ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    pthread_once(&watched, watch_forks);
    pthread_mutex_lock(&door);
    int listens = sigaction(SIGBUS, NULL, &now) == 0;
    if (listens && !is_ours(&now)) {
        before = now;
        listens = sigaction(SIGBUS, &ours, NULL) == 0;
    }
    listeners += listens;
    pthread_mutex_unlock(&door);
    return listens;
}

static void stop_listening(void)
{
    struct sigaction now;
    pthread_mutex_lock(&door);
    if (--listeners == 0 && sigaction(SIGBUS, NULL, &now) == 0 && is_ours(&now))
        sigaction(SIGBUS, &before, NULL);
    pthread_mutex_unlock(&door);
}

static int is_cached(int fd, int64_t from, int64_t to)
{
#ifdef RWF_NOWAIT
    for (int64_t k = 0; k < PROBES; k++) {
        char byte;
        struct iovec piece = {&byte, 1};
        if (preadv2(fd, &piece, 1, (off_t)(from + (to - 1 - from) / (PROBES - 1) * k), RWF_NOWAIT) != 1)
            return 0;
    }
    return 1;
#else
    (void)fd, (void)from, (void)to;
    return 0;
#endif
}

static int take_slot(void)
{
    for (int i = 0; i < SLOTS; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&mapped[i].taken, &none, 1))
            return i;
    }
    return -1;
}

static void leave_slot(int slot)
{
    atomic_store(&mapped[slot].start, NULL);
    atomic_store(&mapped[slot].broken, NULL);
    atomic_store(&mapped[slot].taken, 0);
}

void window_open(Window *w, int fd, int64_t from, int64_t to)
{
    const int64_t page = sysconf(_SC_PAGESIZE), start = from / page * page;
    *w = (Window){.fd = fd, .from = from, .to = to, .slot = -1};
    if (to - from < LEAST || !is_cached(fd, from, to) || (w->slot = take_slot()) < 0)
        return;
    if (!start_listening()) {
        leave_slot(w->slot);
        return;
    }
    char *at = mmap(NULL, (size_t)(to - start), PROT_READ, MAP_SHARED, fd, (off_t)start);
    if (at == MAP_FAILED) {
        leave_slot(w->slot);
        stop_listening();
        return;
    }
    mapped[w->slot].size = (size_t)(to - start);
    atomic_store(&mapped[w->slot].start, at);
    w->bytes = at + (from - start);
}

/* Return the first byte of what is mapped that could not be read, and why; -1 where there is none. */
static int64_t find_trouble(const Window *w, int *why)
{
    struct stat now;
    const char *broken = atomic_load(&mapped[w->slot].broken);
    int64_t first = broken ? w->from + (broken - w->bytes) : -1;
    *why = EIO;
    if (fstat(w->fd, &now) == 0 && now.st_size < w->to) { /* the rest of the last page reads as zeros */
        *why = -1;
        first = first < 0 || now.st_size < first ? now.st_size : first;
    }
    return first;
}

int64_t window_close(Window *w, int *why)
{
    if (!w->bytes)
        return -1;
    const int64_t first = find_trouble(w, why);
    char *start = atomic_load(&mapped[w->slot].start);
    const size_t size = mapped[w->slot].size;
    leave_slot(w->slot); /* before others can be at these addresses */
    munmap(start, size);
    stop_listening();
    w->bytes = NULL;
    return first;
}

#else

void window_open(Window *w, int fd, int64_t from, int64_t to)
{
    *w = (Window){.fd = fd, .from = from, .to = to, .slot = -1};
}

int64_t window_close(Window *w, int *why)
{
    (void)w, (void)why;
    return -1;
}

#endif
