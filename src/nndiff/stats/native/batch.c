/* Rounds of tasks over a batch. Whatever the number of threads, parts are merged in one fixed order. */
#define _GNU_SOURCE
#include "batch.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_X86
#include <xmmintrin.h>
#endif

#include "step_files.h"

int batch_start(Batch *b, size_t items, int threads, const Kernels *kernels, int fed)
{
    b->kernels = kernels;
    b->count = items;
    b->threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    b->round = ROUND_PILOT;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->change, NULL);
    for (size_t i = 0; i < items; i++) {
        Item *item = &b->items[i];
        item->narrow = is_narrow(item->ref.type) && is_narrow(item->cand.type);
        item->same = item->ref.type == item->cand.type;
        item->fused = item->same && (item->ref.type == TYPE_F32 || item->ref.type == TYPE_BF16 || item->ref.type == TYPE_F16);
        item->whole = is_whole(item->ref.type) && is_whole(item->cand.type) &&
                      (TYPE_SIZE[item->ref.type] == 8 || TYPE_SIZE[item->cand.type] == 8);
        item_prepare(item, fed);
        b->no_memory |= item->no_memory;
    }
    return !b->no_memory;
}

void batch_stop(Batch *b)
{
    batch_wait(b);
    for (size_t i = 0; i < b->count && b->items; i++)
        item_stop(&b->items[i]);
    for (int i = 0; i < b->worker_count; i++)
        worker_stop(&b->workers[i]);
    free(b->items);
    free(b->tasks);
    if (b->kernels) {
        pthread_mutex_destroy(&b->lock);
        pthread_cond_destroy(&b->change);
    }
}

/* --- the tasks of a round ------------------------------------------------------------------------ */

static int64_t chunks_of(const Item *item)
{
    return (item->count + CHUNK - 1) / CHUNK;
}

/* Chunks that go first, evenly spread, to tell about where the percentiles are. */
static int64_t pilots_of(const Item *item)
{
    int64_t some = chunks_of(item) / 64;
    return some < 32 ? 32 : some > 256 ? 256 : some;
}

static int64_t pilot_chunk(const Item *item, int64_t number)
{
    return (chunks_of(item) - 1) * number / (pilots_of(item) - 1);
}

static void add_task(Batch *b, size_t item, int group, int64_t chunk)
{
    int64_t start = chunk * CHUNK, left = b->items[item].count - start;
    b->tasks[b->task_count++] = (Task){(int)item, group, start, (size_t)(left < CHUNK ? left : CHUNK)};
}

static void add_chunks(Batch *b, size_t i)
{
    const Item *item = &b->items[i];
    int piloted = item->mode == BRACKET && b->round == ROUND_FIRST;
    int64_t pilot = 0;
    for (int64_t chunk = 0; chunk < chunks_of(item); chunk++) {
        const int again = piloted && pilot < pilots_of(item) && chunk == pilot_chunk(item, pilot);
        add_task(b, i, again ? SAMPLED_ONLY : PLAIN, chunk);
        pilot += again;
    }
}

static int takes_part(const Item *item, Round round)
{
    switch (round) {
    case ROUND_PILOT: return item->mode == BRACKET;
    case ROUND_FIRST: return 1;
    case ROUND_WINDOWS: return item->stage == WINDOWS && !item->error;
    default: return item->looks_again && !item->error && !item->no_memory;
    }
}

static int plan_round(Batch *b)
{
    size_t room = 1;
    for (size_t i = 0; i < b->count; i++)
        room += (size_t)chunks_of(&b->items[i]);
    free(b->tasks);
    b->tasks = malloc(room * sizeof *b->tasks);
    b->task_count = b->next = 0;
    if (!b->tasks)
        return 0;
    for (size_t i = 0; i < b->count; i++) {
        if (!takes_part(&b->items[i], b->round))
            continue;
        if (b->round == ROUND_PILOT)
            for (int64_t pilot = 0; pilot < pilots_of(&b->items[i]); pilot++)
                add_task(b, i, (int)(pilot % GROUPS), pilot_chunk(&b->items[i], pilot));
        else if (b->round == ROUND_PICK)
            add_task(b, i, PLAIN, 0);
        else
            add_chunks(b, i);
    }
    return 1;
}

static void end_round(Batch *b)
{
    for (size_t i = 0; i < b->count; i++) {
        Item *item = &b->items[i];
        if (b->round == ROUND_PILOT && item->mode == BRACKET)
            item_draw_brackets(item);
        else if (b->round == ROUND_FIRST)
            item_after_first_look(item);
        else if (b->round == ROUND_WINDOWS && item->stage == WINDOWS)
            item_after_windows(item);
        b->no_memory |= item->no_memory;
    }
    b->round++;
}

size_t batch_end_of_step(Batch *b, int64_t elements)
{
    while (b->next >= b->task_count) {
        if (b->tasks)
            end_round(b);
        if (b->round == ROUND_END || b->no_memory)
            return 0;
        if (!plan_round(b)) {
            b->no_memory = 1;
            return 0;
        }
    }
    size_t end = b->next;
    for (int64_t bytes = 0; end < b->task_count && elements > 0 && bytes < FILE_BYTES; end++) {
        elements -= (int64_t)b->tasks[end].n;
        bytes += bytes_in_files(b, &b->tasks[end]);
    }
    return end;
}

/* --- the threads of a step ----------------------------------------------------------------------- */

typedef struct Step {
    Batch *batch;
    State *states;
    size_t first, end;
    atomic_size_t next;
    Worker *spare; /* for who helps; may be absent */
} Step;

typedef struct {
    Step *step;
    Worker *worker;
} Hand;

/* Where a look at a task leaves its numbers: an item of a single chunk has nothing to merge. */
static State *state_of(const Step *step, size_t t)
{
    Item *item = &step->batch->items[step->batch->tasks[t].item];
    return item->mode == KEEP ? &item->state : &step->states[t - step->first];
}

static void look_at(Worker *worker, Item *item, const Task *task, State *state)
{
    if (task->group == SAMPLED_ONLY) {
        state_start(state); /* it has nothing to add */
        second_look(worker, item, task);
    } else {
        first_look(worker, item, task, state);
    }
}

static void *work(void *argument)
{
    Hand *hand = argument;
    Step *step = hand->step;
    Batch *b = step->batch;
#ifdef HAVE_X86
    unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1F80); /* the caller may flush subnormals to zero; our numbers must not depend on it */
#endif
    sigset_t bus, masked;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &bus, &masked); /* who reads what is mapped is told where that fails: window.c */
    for (size_t t; (t = atomic_fetch_add(&step->next, 1)) < step->end;) {
        const Task *task = &b->tasks[t];
        Item *item = &b->items[task->item];
        if (b->round == ROUND_PICK)
            item_after_second_look(item);
        else if (b->round == ROUND_SECOND || b->round == ROUND_WINDOWS)
            second_look(hand->worker, item, task);
        else
            look_at(hand->worker, item, task, state_of(step, t));
    }
    worker_flush(hand->worker);
    pthread_sigmask(SIG_SETMASK, &masked, NULL);
#ifdef HAVE_X86
    _mm_setcsr(mode);
#endif
    return NULL;
}

static int want_workers(Batch *b, int count)
{
    while (b->worker_count < count) {
        Worker *w = &b->workers[b->worker_count++];
        if (!worker_start(w, b->kernels, &b->lock))
            return 0;
    }
    return 1;
}

/* Start a thread that gets no signals: they are for the thread that called. */
static int start_thread(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}

/* Let the caller of a driven batch in, or wait until it is out again. */
static void open_step(Batch *b, Step *step)
{
    pthread_mutex_lock(&b->lock);
    b->open = step;
    pthread_cond_broadcast(&b->change);
    while (!step && b->helped)
        pthread_cond_wait(&b->change, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void help(Batch *b, Step *step)
{
    Hand hand = {step, step->spare};
    b->helped = 1;
    pthread_mutex_unlock(&b->lock);
    work(&hand);
    pthread_mutex_lock(&b->lock);
    b->helped = 0;
    pthread_cond_broadcast(&b->change);
}

/* A driven batch leaves a thread out: its caller works as well while it waits, and where that has other things to do,
   no more threads run than there are cores. */
static void run_threads(Batch *b, Step *step, int threads)
{
    pthread_t thread[MAX_THREADS];
    Hand hand[MAX_THREADS];
    int started = 0;
    for (int i = 0; i < threads; i++)
        hand[i] = (Hand){step, &b->workers[i]};
    if (b->driven && threads > 1) {
        step->spare = &b->workers[--threads];
        open_step(b, step);
    }
    while (started + 1 < threads && start_thread(&thread[started], work, &hand[started + 1]))
        started++;
    work(&hand[0]);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    if (step->spare)
        open_step(b, NULL);
}

static int64_t merge(Batch *b, const Step *step)
{
    int64_t seen = 0;
    for (size_t t = step->first; t < step->end; t++) {
        Item *item = &b->items[b->tasks[t].item];
        const State *part = state_of(step, t);
        seen += part->done;
        if (part == &item->state)
            continue;
        state_merge(&item->state, part);
        if (t + 1 == step->end || b->tasks[t + 1].item != b->tasks[t].item)
            item->known = survey_of(&item->state);
    }
    return seen;
}

int64_t batch_step(Batch *b, size_t end)
{
    size_t tasks = end - b->next;
    int threads = tasks < (size_t)b->threads ? (int)tasks : b->threads;
    Step step = {.batch = b, .first = b->next, .end = end};
    int looks = b->round <= ROUND_FIRST;
    atomic_init(&step.next, b->next);
    step.states = looks ? malloc(tasks * sizeof *step.states) : NULL;
    if (!want_workers(b, threads) || (looks && !step.states)) {
        b->no_memory = 1;
        free(step.states);
        return 0;
    }
    Windows windows = {.count = 0};
    if (b->round != ROUND_PILOT && b->round != ROUND_PICK) /* pilots are far apart: they would map more than they read */
        open_windows(b, end, &windows);
    run_threads(b, &step, threads);
    close_windows(b, end, &windows);
    int64_t seen = looks ? merge(b, &step) : 0;
    free(step.states);
    b->next = end;
    return seen;
}

/* --- a batch on its own -------------------------------------------------------------------------- */

/* Take over the workers of a batch that is done: their memory is in use already. */
static void take_workers(Batch *b, Batch *from)
{
    for (; from->worker_count && from->kernels == b->kernels; b->worker_count++) {
        Worker *w = &b->workers[b->worker_count];
        *w = from->workers[--from->worker_count];
        w->lock = &b->lock;
        w->item = NULL;
    }
}

/* Tell that a batch is done, and which one is next. Nothing of it may be touched behind this: it may be gone. */
static Batch *end_drive(Batch *b)
{
    pthread_mutex_lock(&b->lock);
    Batch *next = b->then;
    if (next)
        take_workers(next, b);
    b->ended = 1;
    pthread_cond_broadcast(&b->change);
    pthread_mutex_unlock(&b->lock);
    return next;
}

static void *drive(void *argument)
{
    for (Batch *b = argument; b; b = end_drive(b))
        for (size_t end; (end = batch_end_of_step(b, INT64_MAX));)
            b->seen += batch_step(b, end);
    return NULL;
}

/* Give a batch to the driver of another, or just its workers where that is done already. */
static int follow(Batch *b, Batch *after)
{
    pthread_mutex_lock(&after->lock);
    int goes_on = !after->ended && !after->then;
    if (goes_on)
        after->then = b;
    else if (after->ended)
        take_workers(b, after);
    pthread_mutex_unlock(&after->lock);
    return goes_on;
}

int batch_begin(Batch *b, Batch *after)
{
    pthread_t driver;
    b->seen = 0;
    b->process = getpid();
    b->driven = 1; /* the driver looks at it */
    if (after && follow(b, after))
        return 1;
    b->driven = start_thread(&driver, drive, b);
    if (b->driven)
        pthread_detach(driver); /* it may be long in going: the next one takes its core */
    return b->driven;
}

static void await(Batch *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->ended) {
        if (b->open && atomic_load(&b->open->next) < b->open->end)
            help(b, b->open);
        else
            pthread_cond_wait(&b->change, &b->lock);
    }
    pthread_mutex_unlock(&b->lock);
}

int batch_is_lost(const Batch *b)
{
    return b->driven && b->process != getpid();
}

int64_t batch_wait(Batch *b)
{
    if (b->driven && !batch_is_lost(b))
        await(b);
    b->driven = 0;
    return b->seen;
}
