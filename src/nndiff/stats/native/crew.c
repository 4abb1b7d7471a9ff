/* Threads that share numbered tasks: torch's own where they are, else helpers that may come late. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "crew.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_X86 1
#include <immintrin.h>
#endif

/* What helpers share. They may come late, even after all is done: then they find nothing left, touch nothing but
   this, and whoever is last frees it. So a busy machine never keeps the caller waiting for a helper to start. */
typedef struct {
    CrewTask task;
    void *context;
    size_t count;
    atomic_size_t next;
    atomic_int users;
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    size_t done;
} Crew;

static void leave(Crew *crew)
{
    if (atomic_fetch_sub(&crew->users, 1) > 1)
        return;
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->all_done);
    free(crew);
}

static void work(Crew *crew)
{
    size_t number, did = 0;
#ifdef HAVE_X86
    unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1F80); /* the caller may flush subnormals to zero; our numbers must not depend on it */
#endif
    for (; (number = atomic_fetch_add(&crew->next, 1)) < crew->count; did++)
        crew->task(crew->context, number);
#ifdef HAVE_X86
    _mm_setcsr(mode);
#endif
    pthread_mutex_lock(&crew->lock);
    crew->done += did;
    if (crew->done == crew->count)
        pthread_cond_signal(&crew->all_done);
    pthread_mutex_unlock(&crew->lock);
}

static void *help(void *argument)
{
    work(argument);
    leave(argument);
    return NULL;
}

static void work_in_team(void *argument)
{
    work(argument);
}

static void call_helpers(Crew *crew, int count)
{
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    if (count < 1 || pthread_attr_init(&detached) != 0)
        return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are for the thread that called */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < count; i++) {
        atomic_fetch_add(&crew->users, 1);
        if (pthread_create(&thread, &detached, help, crew) != 0) {
            atomic_fetch_sub(&crew->users, 1);
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

/* Between two operations torch's own threads spin for a while and wait for the next one: threads of ours would have to
   share the cores with them. Where torch's OpenMP is there, its team does the work instead. */
typedef void (*Team)(void (*)(void *), void *, unsigned threads, unsigned flags);

static atomic_int forked; /* a team does not live on in a child process, and would be waited for for ever */

static void in_child(void)
{
    atomic_store(&forked, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static Team find_team(void)
{
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    pthread_once(&watched, watch_forks);
    union { void *found; Team team; } of = {atomic_load(&forked) ? NULL : dlsym(RTLD_DEFAULT, "GOMP_parallel")};
    return of.team;
}

int crew_run(CrewTask task, void *context, size_t count, int threads)
{
    threads = threads < 1 ? 1 : threads < CREW_MOST ? threads : CREW_MOST;
    threads = (size_t)threads < count ? threads : (int)count;
    Crew *crew = calloc(1, sizeof *crew);
    if (!crew)
        return 0;
    crew->task = task;
    crew->context = context;
    crew->count = count;
    atomic_init(&crew->next, 0);
    atomic_init(&crew->users, 1);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->all_done, NULL);
    Team team = threads > 1 ? find_team() : NULL;
    if (team) {
        team(work_in_team, crew, (unsigned)threads, 0);
    } else {
        call_helpers(crew, threads - 1);
        work(crew);
    }
    pthread_mutex_lock(&crew->lock);
    while (crew->done < crew->count)
        pthread_cond_wait(&crew->all_done, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
    leave(crew);
    return 1;
}
